"""Views that are not views: `*_copy` reads, `*_scatter` writes, and the gradients of views, by the same steps as the views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import axis, covered, write_along
from xla_core.ops.facts import TorchKernel
from xla_core.ops.index.scatter import scatter_at
from xla_core.ops.promote import cast, full
from xla_core.ops.shape.view_steps import select_step, slice_step
from xla_core.ops.shape.views import VIEWS, Offset
from xla_core.ops.table import Context, op, overload_named, without_lowering

# aten name of the copy -> name of the view that it copies
_READS = {
    "view_copy": "view",
    "view_copy.dtype": "view.dtype",
    "_unsafe_view": "view",
    "_reshape_copy": "view",
    "_reshape_alias_copy": "_reshape_alias",
    "t_copy": "t",
    "permute_copy": "permute",
    "transpose_copy.int": "transpose.int",
    "expand_copy": "expand",
    "as_strided_copy": "as_strided",
    "unsqueeze_copy": "unsqueeze",
    "squeeze_copy": "squeeze",
    "squeeze_copy.dim": "squeeze.dim",
    "squeeze_copy.dims": "squeeze.dims",
    "diagonal_copy": "diagonal",
    "unfold_copy": "unfold",
    "alias_copy": "alias",
    "detach_copy": "detach",
    "lift_fresh_copy": "lift_fresh",
    "_fw_primal_copy": "alias",
    "view_as_real_copy": "view_as_real",
    "view_as_complex_copy": "view_as_complex",
    "_conj_copy": "_conj",
    "_neg_view_copy": "_neg_view",
}
_WRITES = {
    "diagonal_scatter": "diagonal",
    "as_strided_scatter": "as_strided",
}


def _in_order(name: str, skipped: int) -> Callable[[tuple[Any, ...], dict[str, Any]], list[Any]]:
    """Turns a call's arguments after the tensors into positional ones, which is how view steps take them."""

    def ordered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        arguments = [a for a in overload_named(f"aten::{name}")._schema.arguments[skipped:] if a.name != "implicit"]
        return [*args, *(kwargs.get(a.name, a.default_value) for a in arguments[len(args) :])]

    return ordered


def _register_read(name: str, view: str) -> None:
    ordered = _in_order(name, 1)

    @op(name)
    def lower(ctx: Context, x: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """Read a view of `x`."""
        return VIEWS[view].read(x, ctx.shape, *ordered(args, kwargs))


def _register_write(name: str, view: str) -> None:
    ordered = _in_order(name, 2)

    @op(name)
    def lower(ctx: Context, x: jax.Array, src: jax.Array, *args: Any, **kwargs: Any) -> jax.Array:
        """`x` with the part that a view shows replaced by `src`."""
        return VIEWS[view].write(x, cast(src, x.dtype), *ordered(args, kwargs))


for _name, _view in _READS.items():
    _register_read(_name, _view)
for _name, _view in _WRITES.items():
    _register_write(_name, _view)


@op("select_copy.int")
def _select_copy(ctx: Context, x: jax.Array, dim: int, index: int) -> jax.Array:
    """select_copy.int(Tensor self, int dim, SymInt index) -> Tensor"""
    return select_step(x.shape, dim, index).read(x)


@op("slice_copy.Tensor")
def _slice_copy(ctx: Context, x: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> jax.Array:
    """slice_copy.Tensor(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    return slice_step(x.shape, dim, start, end, step).read(x)


@op("select_scatter")
def _select_scatter(ctx: Context, x: jax.Array, src: jax.Array, dim: int, index: int) -> jax.Array:
    """select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"""
    return select_step(x.shape, dim, index).write(x, cast(src, x.dtype))


@op("slice_scatter")
def _slice_scatter(
    ctx: Context, x: jax.Array, src: jax.Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> jax.Array:
    """slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor"""
    return slice_step(x.shape, dim, start, end, step).write(x, cast(src, x.dtype))


def _counted_from_0(index: Offset, size: int) -> Offset:
    """An index or a bound, which may count from the end, as a slice clamps it."""
    if isinstance(index, int):
        return min(max(index + size if index < 0 else index, 0), size)
    return lax.clamp(np.int64(0), lax.select(index < 0, index + size, index), np.int64(size))


def _spread(ctx: Context, grad: jax.Array, dim: int, start: Offset, step: int) -> jax.Array:
    """`grad` spread along `dim` from `start` in steps of `step`, zeros elsewhere."""
    zero, length = full(0, (), grad.dtype), covered(grad.shape[dim], step)
    low, high = (start, ctx.shape[dim] - start - length) if isinstance(start, int) else (0, 0)
    block = lax.pad(grad, zero, [(low, high, step - 1) if d == dim else (0, 0, 0) for d in range(grad.ndim)])
    return block if isinstance(start, int) else write_along(full(0, ctx.shape, grad.dtype), block, dim, start)


@op("select_backward", scalars=("index",))
def _select_backward(ctx: Context, grad: jax.Array, input_sizes: Sequence[int], dim: int, index: Offset) -> jax.Array:
    """select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor"""
    dim = axis(dim, len(ctx.shape))
    return _spread(ctx, lax.expand_dims(grad, (dim,)), dim, _counted_from_0(index, ctx.shape[dim]), 1)


@op("slice_backward", scalars=("start", "end"))
def _slice_backward(
    ctx: Context, grad: jax.Array, input_sizes: Sequence[int], dim: int, start: Offset, end: Offset, step: int
) -> jax.Array:
    """slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, SymInt step) -> Tensor"""
    dim = axis(dim, len(ctx.shape))
    return _spread(ctx, grad, dim, _counted_from_0(start, ctx.shape[dim]) if grad.size else 0, step)


@op("diagonal_backward")
def _diagonal_backward(ctx: Context, grad: jax.Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> jax.Array:
    """diagonal_backward(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int dim2) -> Tensor"""
    return VIEWS["diagonal"].write(full(0, ctx.shape, ctx.dtype), grad, offset, dim1, dim2)


@op("unfold_backward")
def _unfold_backward(ctx: Context, grad: jax.Array, input_sizes: Sequence[int], dim: int, size: int, step: int) -> jax.Array:
    """unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor: overlapping windows add up."""
    if not ctx.shape:
        return lax.reshape(grad, ()) if grad.size else full(0, (), grad.dtype)
    dim = axis(dim, len(ctx.shape))
    windows = grad.shape[dim]
    place = lax.add(
        lax.mul(lax.broadcasted_iota(np.int64, (windows, size), 0), full(step, (windows, size), np.dtype(np.int64))),
        lax.broadcasted_iota(np.int64, (windows, size), 1),
    )
    updates = lax.transpose(grad, (*range(dim + 1), grad.ndim - 1, *range(dim + 1, grad.ndim - 1)))
    return scatter_at(full(0, ctx.shape, grad.dtype), (dim,), (place,), updates, dim, "sum")


# The result of torch's own kernels shares the storage object, where the data is found.
without_lowering("detach", "alias", kernel=TorchKernel.KEPT)
# Reached with xla tensors although subclass dispatch is excluded: torch.tensor moves its data so.
# `torch.tensor([x[0], x[1]])` reads numbers below the tensors' dispatch.
without_lowering("_copy_from", "_copy_from_and_resize", "_local_scalar_dense", kernel=TorchKernel.REPLACED)
