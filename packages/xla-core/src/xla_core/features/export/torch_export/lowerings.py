"""Finds lowerings for operations of functional graphs: rows of the op table, and own lowerings of views and copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.errors import UnsupportedOperationError, XlaError
from xla_core.base.private_torch import OpOverload, tree_leaves, tree_map
from xla_core.engine.tensor.dispatch import custom_handler
from xla_core.engine.tensor.schema import full_name, short_name
from xla_core.features.export.torch_export.symbolic_dims import Dim
from xla_core.ops.axes import is_open
from xla_core.ops.nn.avg_pool import avg_pool
from xla_core.ops.nn.windows import of_rank
from xla_core.ops.shape.views import VIEWS
from xla_core.ops.table import TABLE, Context, Lowering


class EqualSizes(UnsupportedOperationError):
    """Two symbolic dimensions are equal, which JAX does not know. constraint: tells JAX."""

    def __init__(self, size: Dim, other: Dim) -> None:
        self.constraint = f"{size} == {other}"
        super().__init__(f"JAX cannot be told that {self.constraint}: fix one of these sizes")


def is_served(target: Any) -> bool:
    """Whether an operation runs on the device without torch's decomposition."""
    if not isinstance(target, OpOverload):
        return False
    return lowering_of(target) is not None or custom_handler(target) is not None or target._overloadname in _BY_OTHERS


def lowering_of(target: OpOverload) -> Lowering | None:
    """The lowering of an operation, for any sizes; None if it has none."""
    name = short_name(target)
    if name in _OWN:
        return _OWN[name]
    if name in VIEWS:
        return partial(_view, VIEWS[name].read)
    row = TABLE.get(full_name(target))
    return None if row is None else row.lower


def over_open_sizes(target: OpOverload, lower: Lowering) -> Lowering:
    """Wrap a lowering for arrays of symbolic sizes: sizes that are operands (`x / x.shape[0]`) become arrays, others stay symbolic."""
    argument_types = {argument.name: str(argument.type) for argument in target._schema.arguments}

    def run(context: Context, *args: Any, **kwargs: Any) -> Any:
        placed = [_operand(argument_type, value) for argument_type, value in zip(argument_types.values(), args, strict=False)]
        try:
            result = lower(context, *placed, **{name: _operand(argument_types[name], value) for name, value in kwargs.items()})
            several = isinstance(result, (list, tuple))
            return [_checked(target, output, struct) for output, struct in zip(result if several else [result], context.out, strict=True)]
        except XlaError:
            raise
        except Exception as error:
            shapes = [getattr(item, "shape", item) for item in tree_leaves((args, kwargs))]
            raise UnsupportedOperationError(
                f"{target} over {shapes} cannot be exported with open sizes ({type(error).__name__}: {str(error).partition(chr(10))[0]}): "
                "fix the sizes that it depends on, or export the program once for each size"
            ) from error

    return run


def _operand(argument_type: str, value: Any) -> Any:
    if "int" in argument_type.lower():  # int, int[], SymInt[]
        return value
    return tree_map(lambda item: jax.numpy.asarray(item) if is_open(item) else item, value)


def _checked(target: OpOverload, result: Any, struct: jax.ShapeDtypeStruct | None) -> Any:
    if struct is None:
        return result
    if len(result.shape) == len(struct.shape):
        for expected, size in zip(struct.shape, result.shape, strict=True):
            if expected != size and is_open(expected) and is_open(size):
                raise EqualSizes(expected, size)
    if tuple(result.shape) != tuple(struct.shape):
        raise UnsupportedOperationError(f"the lowering of {target} gave {list(result.shape)}, torch has {list(struct.shape)}")
    return lax.convert_element_type(result, struct.dtype)


def number_of_sizes(function: Callable[..., Any], context: Context, *args: Any) -> jax.Array:
    """Lower a Python function of sizes and numbers, such as `torch.sym_float` or a division."""
    return jax.numpy.asarray(args[0] if function is torch.sym_float else function(*args), np.float64)


def _view(read: Callable[..., jax.Array], context: Context, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
    return read(x, context.shape, *args, **kwargs)


def _slice(context: Context, x: jax.Array, dim: int = 0, start: Dim | None = None, end: Dim | None = None, step: int = 1) -> jax.Array:
    """slice.Tensor; the size of the result tells where it ends."""
    dim %= x.ndim
    size, count = x.shape[dim], context.shape[dim]
    low = _within(0 if start is None else start, size)
    return lax.slice_in_dim(x, low, low + (count - 1) * step + 1 if step != 1 else low + count, step, dim)


def _within(index: Dim, size: Dim) -> Dim:
    """An index counted from the front, between 0 and `size`."""
    index = index + size if index < 0 else index
    return jax.core.max_dim(jax.core.min_dim(index, size), 0)


def _select(context: Context, x: jax.Array, dim: int, index: Dim) -> jax.Array:
    dim %= x.ndim
    position = index + x.shape[dim] if index < 0 else index
    return lax.squeeze(lax.slice_in_dim(x, position, position + 1, 1, dim), (dim,))


def _split(context: Context, x: jax.Array, sizes: Sequence[Dim], dim: int = 0) -> list[jax.Array]:
    begin, parts = 0, []
    for struct in context.out:
        count = struct.shape[dim]  # type: ignore[union-attr]
        parts.append(lax.slice_in_dim(x, begin, begin + count, 1, dim))
        begin = begin + count
    return parts


def _sample_variance(context: Context, x: jax.Array, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
    return TABLE["aten::var.correction"].lower(context, x, dim, correction=int(unbiased), keepdim=keepdim)


_BY_OTHERS = frozenset({"vec"})  # resampling overloads, whose kernels compute sizes and call an overload with a row
_OWN: Mapping[str, Lowering] = {
    "slice.Tensor": _slice,
    "select.int": _select,
    "split_with_sizes": _split,
    "split.Tensor": _split,
    "unbind.int": lambda context, x, dim=0: [_select(context, x, dim, index) for index in range(x.shape[dim])],
    "var.dim": _sample_variance,
    "avg_pool1d": of_rank(1, avg_pool),
}
