"""Recognise a user's computation as one of XLA's own reductions, which have gradients and fast programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.legacy.builder.nodes import XlaComputation

_BINARY: dict[str, Callable[..., Any]] = {
    "Add": lax.add,
    "Mul": lax.mul,
    "Max": lax.max,
    "Min": lax.min,
    "And": lax.bitwise_and,
    "Or": lax.bitwise_or,
    "Xor": lax.bitwise_xor,
}


def single_operation(computation: XlaComputation) -> str | None:
    """The name of the operation if a computation is only one, of its two parameters; `"Second"` if it gives the second; else None."""
    root = computation.root
    if root is None:
        return None
    if root.attributes.get("parameter_number") == 1:
        return "Second"
    indices = [operand.attributes.get("parameter_number") for operand in root.operands]
    return root.name if indices == [0, 1] or (root.name in _BINARY and indices == [1, 0]) else None


def check_pair(computation: XlaComputation, array: Any) -> None:
    """Raise ValueError unless a computation takes two numbers of the array's dtype."""
    computation.check(*[jax.ShapeDtypeStruct((), array.dtype)] * 2)


def reducer(computation: XlaComputation, array: Any) -> Callable[..., Any]:
    """`lax`'s own function for the computation's operation, else the computation. Raises as `check_pair`."""
    check_pair(computation, array)
    return _BINARY.get(single_operation(computation) or "", computation)


_SCATTERS: dict[str, Callable[..., Any]] = {
    "Second": lax.scatter,
    "Add": lax.scatter_add,
    "Mul": lax.scatter_mul,
    "Max": lax.scatter_max,
    "Min": lax.scatter_min,
}


def scatter_by(computation: XlaComputation, array: Any) -> Callable[..., Any]:
    """The scatter of `lax` that combines as the computation does. Raises UnsupportedOperationError where there is none."""
    check_pair(computation, array)
    scatter = _SCATTERS.get(single_operation(computation) or "")
    if scatter is None:
        raise UnsupportedOperationError(
            f"Scatter cannot combine by computation {computation.name!r}: use one that adds, multiplies, takes the larger or the smaller, "
            "or gives its second parameter, or gather, compute and scatter the result"
        )
    return scatter


def sort(*operands: Any, comparator: XlaComputation, dimension: int | None = None, is_stable: bool | None = None) -> Any:
    """Sort the operands together along a dimension (the last one if None), by a comparator over the pairs of their elements.

    A comparator other than `first < second` and `first > second` of the first operand compares all pairs: memory for n² bools a row.
    """
    pairs = [jax.ShapeDtypeStruct((), operand.dtype) for operand in operands for _ in range(2)]
    comparator.check(*pairs)
    if jax.eval_shape(comparator, *pairs).dtype != np.bool_:
        raise ValueError(f"{comparator!r} gives no pred: it says whether the first number comes before the second")
    axis = operands[0].ndim - 1 if dimension is None else dimension % operands[0].ndim
    if operands[0].size == 0:
        return operands[0] if len(operands) == 1 else operands
    operation = single_operation(comparator)
    if operation == "Lt":
        sorted_operands: Sequence[Any] = lax.sort(operands, dimension=axis, is_stable=bool(is_stable), num_keys=1)
    elif operation == "Gt" and not np.issubdtype(operands[0].dtype, np.complexfloating):
        flipped = lax.sort([lax.rev(operand, (axis,)) for operand in operands], dimension=axis, is_stable=True, num_keys=1)
        sorted_operands = [lax.rev(operand, (axis,)) for operand in flipped]
    else:
        sorted_operands = _by_all_pairs(operands, comparator, axis)
    return sorted_operands[0] if len(operands) == 1 else tuple(sorted_operands)


def _by_all_pairs(operands: tuple[Any, ...], comparator: XlaComputation, axis: int) -> list[Any]:
    last = [jax.numpy.moveaxis(array, axis, -1) for array in operands]
    shape = last[0].shape
    rows = [lax.reshape(array, (array.size // max(shape[-1], 1), shape[-1])) for array in last]
    positions = lax.iota(np.int32, shape[-1])

    def sorted_row(*row: Any) -> list[Any]:
        def before(i: Any, j: Any) -> Any:
            pairs = [value for array in row for value in (array[i], array[j])]
            return comparator(*pairs)

        smaller = jax.vmap(lambda i: jax.vmap(lambda j: before(i, j))(positions))(positions)
        first = smaller | (~smaller.T & (positions[:, None] < positions[None, :]))
        rank = lax.reduce(lax.convert_element_type(first, np.int32), np.int32(0), lax.add, (0,))
        return [jax.numpy.zeros_like(array).at[rank].set(array) for array in row]

    sorted_rows = jax.vmap(sorted_row)(*rows)
    return [jax.numpy.moveaxis(lax.reshape(array, shape), -1, axis) for array in sorted_rows]
