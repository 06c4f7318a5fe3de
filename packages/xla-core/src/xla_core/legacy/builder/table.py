"""The operators by the names of 2.9's builder, as functions over `jax.lax`: arrays first, attributes by keyword."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.legacy.builder.nodes import XlaComputation
from xla_core.legacy.builder.reducers import reducer, scatter_by, sort
from xla_core.legacy.builder.shapes import dtype_named
from xla_core.legacy.builder.windowed import conv, max_pool, precision_of, reduce_window, select_and_scatter

Array = Any


def _binary(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Broadcast the two operands of `function`: one of them may be a number, or of size 1 where the other is larger."""

    def run(x: Array, y: Array) -> Array:
        if x.shape != y.shape and x.ndim and y.ndim:
            if x.ndim != y.ndim:
                raise ValueError("operands of different ranks: broadcast_in_dim says which dimensions belong together")
            shape = np.broadcast_shapes(x.shape, y.shape)
        else:
            shape = x.shape or y.shape
        return function(*[operand if operand.shape == shape else _broadcast_to(operand, shape) for operand in (x, y)])

    return run


def _broadcast_to(x: Array, shape: Sequence[int]) -> Array:
    return lax.broadcast_in_dim(x, shape, tuple(range(x.ndim)))


def _shift_right(x: Array, y: Array) -> Array:
    signed = np.issubdtype(x.dtype, np.signedinteger)
    return (lax.shift_right_arithmetic if signed else lax.shift_right_logical)(x, y)


def _reshape(x: Array, *, sizes: Sequence[int], dimensions: Sequence[int] | None = None, inferred_dimension: int | None = None) -> Array:
    if any(size < 0 for size in sizes) or math.prod(sizes) != x.size:
        raise ValueError(f"{x.size} elements do not fill the sizes {tuple(sizes)}")
    return lax.reshape(x, tuple(sizes), None if dimensions is None else tuple(dimensions))


def _dynamic_reshape(x: Array, *sizes_now: Array, sizes: Sequence[int]) -> Array:
    if sizes_now:
        raise UnsupportedOperationError("DynamicReshape to sizes that are computed: shapes are fixed here, reshape to the bound and mask")
    return _reshape(x, sizes=sizes)


def _slice(x: Array, *, start_indices: Sequence[int], limit_indices: Sequence[int], strides: Sequence[int] | None = None) -> Array:
    return lax.slice(x, tuple(start_indices), tuple(limit_indices), None if strides is None else tuple(strides))


def _slice_in_dim(x: Array, *, start_index: int, limit_index: int, dimno: int, stride: int = 1) -> Array:
    return lax.slice_in_dim(x, start_index, limit_index, stride, dimno)


def _starts(rank: int, starts: tuple[Array, ...]) -> list[Array]:
    """One start index for each dimension, also if they came as one vector."""
    if len(starts) == 1 and starts[0].ndim == 1:
        return [lax.index_in_dim(starts[0], index, keepdims=False) for index in range(rank)]
    return list(starts)


def _dynamic_slice(x: Array, *starts: Array, slice_sizes: Sequence[int]) -> Array:
    return lax.dynamic_slice(x, _starts(x.ndim, starts), tuple(slice_sizes))


def _dynamic_update_slice(x: Array, update: Array, *starts: Array) -> Array:
    return lax.dynamic_update_slice(x, update, _starts(x.ndim, starts))


def _index_vector_last(indices: Array, index_vector_dim: int) -> Array:
    return (
        lax.expand_dims(indices, (indices.ndim,)) if index_vector_dim == indices.ndim else jax.numpy.moveaxis(indices, index_vector_dim, -1)
    )


def _gather(
    x: Array,
    start_indices: Array,
    *,
    offset_dims: Sequence[int],
    collapsed_slice_dims: Sequence[int],
    start_index_map: Sequence[int],
    index_vector_dim: int,
    indices_are_sorted: bool | None = None,
    slice_sizes: Sequence[int] | None = None,
) -> Array:
    """slice_sizes: 1 for the collapsed dimensions and all of the others, if left out."""
    if slice_sizes is None:
        slice_sizes = [1 if dimension in collapsed_slice_dims else size for dimension, size in enumerate(x.shape)]
    dims = lax.GatherDimensionNumbers(tuple(offset_dims), tuple(collapsed_slice_dims), tuple(start_index_map))
    rows = _index_vector_last(start_indices, index_vector_dim)
    return lax.gather(x, rows, dims, tuple(slice_sizes), indices_are_sorted=bool(indices_are_sorted), mode="clip")


def _scatter(
    x: Array,
    scatter_indices: Array,
    updates: Array,
    *,
    computation: XlaComputation,
    update_window_dims: Sequence[int],
    inserted_window_dims: Sequence[int],
    scatter_dims_to_operand_dims: Sequence[int],
    index_vector_dim: int,
    indices_are_sorted: bool | None = None,
    unique_indices: bool | None = None,
) -> Array:
    dims = lax.ScatterDimensionNumbers(tuple(update_window_dims), tuple(inserted_window_dims), tuple(scatter_dims_to_operand_dims))
    return scatter_by(computation, x)(
        x,
        _index_vector_last(scatter_indices, index_vector_dim),
        updates,
        dims,
        indices_are_sorted=bool(indices_are_sorted),
        unique_indices=bool(unique_indices),
    )


def _dot_general(
    x: Array, y: Array, *, dimension_numbers: Any, precision_config: Any = None, preferred_element_type: str | None = None
) -> Array:
    (contracting_x, contracting_y), (batch_x, batch_y) = dimension_numbers
    return lax.dot_general(
        x,
        y,
        ((tuple(contracting_x), tuple(contracting_y)), (tuple(batch_x), tuple(batch_y))),
        precision_of(precision_config),
        None if preferred_element_type is None else dtype_named(preferred_element_type),
    )


def _dot(x: Array, y: Array, *, precision_config: Any = None) -> Array:
    return lax.dot_general(x, y, (((x.ndim - 1,), (0,)), ((), ())), precision_of(precision_config))


def _reduce(x: Array, init_value: Array, *, computation: XlaComputation, dimensions: Sequence[int]) -> Array:
    return lax.reduce(x, init_value, reducer(computation, x), tuple(dimensions))


def _reduce_all(x: Array, init_value: Array, *, computation: XlaComputation) -> Array:
    return lax.reduce(x, init_value, reducer(computation, x), tuple(range(x.ndim)))


def _map(*arrays: Array, computation: XlaComputation, dimensions: Sequence[int], static_operands: Sequence[Any] = ()) -> Array:
    if tuple(static_operands):
        raise UnsupportedOperationError("Map takes no static operands: make them constants inside the computation")
    shape = max((array.shape for array in arrays), key=len)
    arrays = tuple(array if array.ndim else _broadcast_to(array, shape) for array in arrays)
    rank = len(shape)
    if sorted(dimensions) != list(range(rank)):
        raise ValueError(f"Map goes over all dimensions, here {list(range(rank))}, not {list(dimensions)}")
    if computation.root is None:  # a module made elsewhere, which jax cannot vectorise
        flat = [lax.reshape(array, (array.size,)) for array in arrays]
        result = lax.map(lambda elements: computation(*elements), tuple(flat))
        return lax.reshape(result, shape)
    function: Callable[..., Array] = computation
    for _ in range(rank):
        function = jax.vmap(function)
    return function(*arrays)


def _conditional(predicate: Array, yes: Array, no: Array, *, true_computation: Any, false_computation: Any) -> Array:
    if predicate.dtype != np.bool_:
        raise ValueError("the predicate is no pred: compare it with a number")
    return lax.cond(predicate, lambda yes, no: true_computation(yes), lambda yes, no: false_computation(no), yes, no)


def _while(state: Array, *, condition_computation: XlaComputation, body_computation: XlaComputation) -> Array:
    return lax.while_loop(condition_computation, body_computation, state)


def _triangular_solve(
    a: Array,
    b: Array,
    *,
    left_side: bool | None = None,
    lower: bool | None = None,
    unit_diagonal: bool | None = None,
    transpose_a: bool | None = None,
) -> Array:
    return lax.linalg.triangular_solve(
        a, b, left_side=left_side is None or left_side, lower=bool(lower), unit_diagonal=bool(unit_diagonal), transpose_a=bool(transpose_a)
    )


def _dimension_size(x: Array, *, dimension: int) -> Array:
    return np.asarray(x.shape[dimension], np.int32)


def _set_dimension_size(x: Array, size: Array, *, dimension: int) -> Array:
    if isinstance(size, np.ndarray) and int(size) == x.shape[dimension]:
        return x
    raise UnsupportedOperationError("SetDimensionSize makes a shape that depends on data, which programs here do not have: mask the rest")


def _element(elements: Any, *, index: int) -> Array:
    if not isinstance(elements, (tuple, list)):
        raise ValueError("the operand is no tuple")
    return elements[index]


def _iota(*, shape: Mapping[str, Any], iota_dimension: int) -> Array:
    return lax.broadcasted_iota(dtype_named(shape["type"]), tuple(shape["sizes"]), iota_dimension)


def _bitcast(x: Array, *, to_type: str) -> Array:
    return lax.bitcast_convert_type(x, dtype_named(to_type))


def _pad(x: Array, value: Array, *, config: Sequence[Sequence[int]]) -> Array:
    return lax.pad(x, value, [(int(low), int(high), int(inner)) for low, high, inner in config])


def _select(predicate: Array, yes: Array, no: Array) -> Array:
    shape = predicate.shape or yes.shape or no.shape
    return lax.select(predicate, *[branch if branch.ndim else _broadcast_to(branch, shape) for branch in (yes, no)])


def _power(x: Array, y: Array) -> Array:
    return jax.numpy.power(x, y) if np.issubdtype(x.dtype, np.integer) else lax.pow(x, y)


def _convert(x: Array, *, to_type: str) -> Array:
    dtype = dtype_named(to_type)
    cut = np.issubdtype(x.dtype, np.complexfloating) and not np.issubdtype(dtype, np.complexfloating)
    return lax.convert_element_type(lax.real(x) if cut else x, dtype)


def _broadcast(x: Array, *, sizes: Sequence[int]) -> Array:
    return lax.broadcast(x, tuple(sizes))


def _broadcast_in_dim(x: Array, *, sizes: Sequence[int], dimensions: Sequence[int]) -> Array:
    return lax.broadcast_in_dim(x, tuple(sizes), tuple(dimensions))


def _clamp(x: Array, min_value: Array, max_value: Array) -> Array:
    return lax.clamp(min_value, x, max_value)


def _rev(x: Array, *, dimensions: Sequence[int]) -> Array:
    return lax.rev(x, tuple(dimensions))


def _transpose(x: Array, *, permutation: Sequence[int]) -> Array:
    return lax.transpose(x, tuple(permutation))


def _not(x: Array) -> Array:
    return lax.bitwise_not(x)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": lax.add,
    "And": lax.bitwise_and,
    "Atan2": lax.atan2,
    "Complex": lax.complex,
    "Div": lax.div,
    "Eq": lax.eq,
    "Ge": lax.ge,
    "Gt": lax.gt,
    "Le": lax.le,
    "Lt": lax.lt,
    "Max": lax.max,
    "Min": lax.min,
    "Mul": lax.mul,
    "Ne": lax.ne,
    "Or": lax.bitwise_or,
    "Pow": _power,
    "Rem": lax.rem,
    "ShiftLeft": lax.shift_left,
    "ShiftRight": _shift_right,
    "Sub": lax.sub,
    "Xor": lax.bitwise_xor,
}
_UNARY: dict[str, Callable[[Array], Array]] = {
    "Abs": lax.abs,
    "Acos": lax.acos,
    "Asin": lax.asin,
    "Atan": lax.atan,
    "Cbrt": lax.cbrt,
    "Ceil": lax.ceil,
    "Clz": lax.clz,
    "Conj": lambda x: lax.conj(x) if np.issubdtype(x.dtype, np.complexfloating) else x,
    "Cos": lax.cos,
    "Cosh": lax.cosh,
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "ErfInv": lax.erf_inv,
    "Exp": lax.exp,
    "Expm1": lax.expm1,
    "Floor": lax.floor,
    "Imag": lax.imag,
    "IsFinite": lax.is_finite,
    "Log": lax.log,
    "Log1p": lax.log1p,
    "Neg": lax.neg,
    "Not": _not,
    "PopulationCount": lax.population_count,
    "Real": lax.real,
    "Round": lax.round,
    "Rsqrt": lax.rsqrt,
    "Sign": lax.sign,
    "Sin": lax.sin,
    "Sinh": lax.sinh,
    "Sqrt": lax.sqrt,
    "Tan": lax.tan,
    "Tanh": lax.tanh,
}
OPERATORS: Mapping[str, Callable[..., Any]] = {
    **_UNARY,
    **{name: _binary(function) for name, function in _BINARY.items()},
    "BitcastConvert": _bitcast,
    "Broadcast": _broadcast,
    "BroadcastInDim": _broadcast_in_dim,
    "Call": lambda *arrays, computation: computation(*arrays),
    "Clamp": _clamp,
    "ConcatInDim": lambda *arrays, dimension: lax.concatenate(arrays, dimension),
    "Conditional": _conditional,
    "Constant": lambda *, value: value,
    "Conv": conv,
    "Convert": _convert,
    "Dot": _dot,
    "DotGeneral": _dot_general,
    "DynamicReshape": _dynamic_reshape,
    "DynamicSlice": _dynamic_slice,
    "DynamicUpdateSlice": _dynamic_update_slice,
    "Gather": _gather,
    "GetDimensionSize": _dimension_size,
    "GetTupleElement": _element,
    "Iota": _iota,
    "Map": _map,
    "MaxPool": max_pool,
    "OptimizationBarrier": lambda *arrays: lax.optimization_barrier(arrays[0] if len(arrays) == 1 else arrays),
    "Pad": _pad,
    "Reduce": _reduce,
    "ReduceAll": _reduce_all,
    "ReduceWindow": reduce_window,
    "Reshape": _reshape,
    "Rev": _rev,
    "Scatter": _scatter,
    "Select": _select,
    "SelectAndScatter": select_and_scatter,
    "SetDimensionSize": _set_dimension_size,
    "Slice": _slice,
    "SliceInDim": _slice_in_dim,
    "Sort": sort,
    "Transpose": _transpose,
    "TriangularSolve": _triangular_solve,
    "Tuple": lambda *arrays: tuple(arrays),
    "While": _while,
}


def operator(name: str) -> Callable[..., Any]:
    """The function of an operator. Raises ValueError for an unknown name, with those that are known."""
    try:
        return OPERATORS[name]
    except KeyError:
        raise ValueError(f"{name!r} is no operator of the builder; the known ones are {', '.join(sorted(OPERATORS))}") from None
