"""The operations of an exported graph on JAX arrays whose sizes may be symbolic: by the same lowerings as recorded ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.dtypes import device_dtype
from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import OpOverload, tree_leaves, tree_map
from xla_core.engine.tensor.schema import full_name, short_name
from xla_core.features.export.torch_export.symbolic_dims import Dim, SymbolicDims
from xla_core.features.export.torch_export.symbolic_pooling import avg_pool, max_pool
from xla_core.ops.axes import has_open_sizes, is_open
from xla_core.ops.shape.views import VIEWS
from xla_core.ops.table import TABLE, Context

aten = torch.ops.aten
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"})
_INFINITE = 1 << 62  # `x[1:]` ends at the largest integer


class EqualSizes(Exception):
    """Two symbolic dimensions are one size, which JAX does not see. constraint: says so to it."""

    def __init__(self, one: Dim, other: Dim) -> None:
        self.constraint = f"{one} == {other}"
        super().__init__(self.constraint)


class SymbolicInterpreter(torch.fx.Interpreter):
    """Runs a functional graph of `torch.export` on JAX arrays, under a trace of JAX's, for a platform."""

    def __init__(self, module: torch.fx.GraphModule, dims: SymbolicDims, platform: str) -> None:
        super().__init__(module)
        self._dims, self._platform = dims, platform

    def run_node(self, n: torch.fx.Node) -> Any:
        """The value of a node: an array, a list of arrays, a number or a symbolic dimension."""
        if n.op != "call_function":
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        try:
            return self._operation(n, args, kwargs)
        except (UnsupportedOperationError, EqualSizes):
            raise
        except Exception as error:
            shapes = [getattr(item, "shape", item) for item in tree_leaves((args, kwargs))]
            reason = str(error).partition("\n")[0]
            raise UnsupportedOperationError(
                f"{n.target} over {shapes} cannot be exported with open sizes ({type(error).__name__}: {reason}): "
                "fix the sizes that it depends on, or export the program once for each size"
            ) from error

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A constant of the graph, as an array."""
        found = super().get_attr(target, args, kwargs)
        return jax.numpy.asarray(constant(found)) if isinstance(found, torch.Tensor) else found

    def _operation(self, n: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target: Any = n.target
        if target is torch.ops.higher_order.with_effects and args[1] in _CHECKS:
            return (None,)  # a token
        if not isinstance(target, OpOverload):
            return _ON_SIZES.get(target, target)(*args, **kwargs)  # of Python, on sizes, or one of several results
        name = short_name(target)
        if name in _OF_SIZES:
            return _OF_SIZES[name](*args)
        if n.meta.get("val") is None:
            return None  # an assertion: those of sizes are constraints of the program
        noted = tree_leaves(n.meta["val"])
        out = tuple(
            None if value is None else jax.ShapeDtypeStruct(self._dims.shape(value.shape), device_dtype(value.dtype)) for value in noted
        )
        result = _lowered(target, Context(out, platform=self._platform), args, kwargs)
        several = isinstance(result, (list, tuple))
        made = [_checked(target, each, struct) for each, struct in zip(result if several else [result], out, strict=True)]
        return made if several else made[0]


def constant(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor of the CPU as the device holds it."""
    from xla_core.engine.runtime.transfer import to_numpy

    return to_numpy(tensor.detach()).astype(device_dtype(tensor.dtype))


def _checked(target: OpOverload, result: Any, struct: jax.ShapeDtypeStruct | None) -> Any:
    if struct is None:
        return result
    if len(result.shape) == len(struct.shape):
        for wanted, given in zip(struct.shape, result.shape, strict=True):
            if wanted != given and is_open(wanted) and is_open(given):
                raise EqualSizes(wanted, given)
    if tuple(result.shape) != tuple(struct.shape):
        raise UnsupportedOperationError(f"the lowering of {target} gave {list(result.shape)}, torch has {list(struct.shape)}")
    return lax.convert_element_type(result, struct.dtype)


def _lowered(target: OpOverload, context: Context, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = short_name(target)
    if name in _OWN:
        return _OWN[name](context, *args, **{key: value for key, value in kwargs.items() if key not in _PLACEMENT})
    if name in VIEWS:
        return VIEWS[name].read(args[0], context.shape, *args[1:], **kwargs)
    if name in _POOLING and has_open_sizes(args[0]):
        return _POOLING[name](context, *args, **kwargs)
    row = TABLE.get(full_name(target))
    if row is None:
        raise UnsupportedOperationError(f"{target} cannot be exported with open sizes: it has no lowering of its own")
    if row.random:
        raise UnsupportedOperationError(f"{target} draws random numbers: pass them as an argument, or export in eval() mode")
    placed, named = _numbers_of_sizes(target, args, {key: value for key, value in kwargs.items() if key not in _PLACEMENT})
    if row.accepts is not None and not row.accepts(*placed, **named):
        raise UnsupportedOperationError(f"{target} with these arguments would run on the CPU, which no exported program can do")
    return row.lower(context, *placed, **named)


def _numbers_of_sizes(target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments, with sizes that are operands (`x / x.shape[0]`) as arrays: those that are sizes of something stay symbolic."""
    kinds = {argument.name: str(argument.type) for argument in target._schema.arguments}
    names = list(kinds)
    placed = [_operand(kinds[names[place]], value) for place, value in enumerate(args)]
    return placed, {name: _operand(kinds[name], value) for name, value in kwargs.items()}


def _operand(kind: str, value: Any) -> Any:
    if "int" in kind.lower():  # int, int[], SymInt[]
        return value
    return tree_map(lambda item: jax.numpy.asarray(item) if is_open(item) else item, value)


def _slice(context: Context, x: jax.Array, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1) -> jax.Array:
    """slice.Tensor: the result's own size says where it ends."""
    dim %= x.ndim
    size, count = x.shape[dim], context.shape[dim]
    low = _within(0 if start is None else start, size)
    return lax.slice_in_dim(x, low, low + (count - 1) * step + 1, step, dim) if step != 1 else lax.slice_in_dim(x, low, low + count, 1, dim)


def _within(place: Dim, size: Dim) -> Dim:
    """A place counted from the front, not beyond the end."""
    place = place + size if place < 0 else place
    return jax.core.max_dim(jax.core.min_dim(place, size), 0)


def _select(context: Context, x: jax.Array, dim: int, index: Dim) -> jax.Array:
    dim %= x.ndim
    place = index + x.shape[dim] if index < 0 else index
    return lax.squeeze(lax.slice_in_dim(x, place, place + 1, 1, dim), (dim,))


def _split(context: Context, x: jax.Array, sizes: Sequence[Dim], dim: int = 0) -> list[jax.Array]:
    begin, parts = 0, []
    for struct in context.out:
        count = struct.shape[dim]  # type: ignore[union-attr]
        parts.append(lax.slice_in_dim(x, begin, begin + count, 1, dim))
        begin = begin + count
    return parts


def _same(context: Context, x: jax.Array, *_: Any, **__: Any) -> jax.Array:
    return lax.convert_element_type(x, context.dtype)


def _zeros(context: Context, *_: Any, **__: Any) -> jax.Array:
    """Memory with any values: zeros, as in recorded programs."""
    return jax.numpy.zeros(context.shape, context.dtype)


def _copied(context: Context, x: jax.Array, source: jax.Array, *_: Any) -> jax.Array:
    return jax.numpy.broadcast_to(lax.convert_element_type(source, context.dtype), context.shape)


def _sample_variance(context: Context, x: jax.Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return TABLE["aten::var.correction"].lower(context, x, dim, correction=int(unbiased), keepdim=keepdim)


_OF_SIZES: Mapping[str, Callable[..., Dim]] = {
    "sym_size.int": lambda x, dim: x.shape[dim],
    "sym_numel": lambda x: x.size,
}
# Where a function of Python would compare sizes or need numbers.
_ON_SIZES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    torch.sym_max: jax.core.max_dim,
    torch.sym_min: jax.core.min_dim,
    torch.sym_float: lambda size: jax.numpy.asarray(size, np.float64),
}
_CHECKS = (aten._linalg_check_errors.default, aten._assert_async.msg)  # of data: an exported program raises nothing
_POOLING: Mapping[str, Callable[..., Any]] = {
    "avg_pool1d": partial(avg_pool, 1),
    "avg_pool2d": partial(avg_pool, 2),
    "avg_pool3d": partial(avg_pool, 3),
    "max_pool2d_with_indices": partial(max_pool, 2),
    "max_pool3d_with_indices": partial(max_pool, 3),
}
_OWN: Mapping[str, Callable[..., Any]] = {
    "slice.Tensor": _slice,
    "select.int": _select,
    "split_with_sizes": _split,
    "split.Tensor": _split,
    "unbind.int": lambda context, x, dim=0: [_select(context, x, dim, place) for place in range(x.shape[dim])],
    "clone": _same,
    "_to_copy": _same,
    "lift_fresh_copy": _same,
    "detach_copy": _same,
    "alias_copy": _same,
    "copy": _copied,
    "empty.memory_format": _zeros,
    "empty_like": _zeros,
    "empty_permuted": _zeros,
    "empty_strided": _zeros,
    "new_empty": _zeros,
    "new_empty_strided": _zeros,
    "var.dim": _sample_variance,
}
