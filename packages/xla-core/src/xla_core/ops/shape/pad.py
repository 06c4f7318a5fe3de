"""Padding with a constant, by reflection or by repeating the edge, and its gradients; negative widths crop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from xla_core.ops.axes import slice_along, with_size
from xla_core.ops.facts import Autocast
from xla_core.ops.memory_format import like_input
from xla_core.ops.promote import cast, compute_dtype
from xla_core.ops.table import Context, op, scalar

# Makes the strips of `before` and `after` elements to put on both sides along a dimension.
Strips = Callable[[jax.Array, int, int, int], tuple[jax.Array, jax.Array]]


@op("constant_pad_nd", scalars=("value",))
def _constant_pad(ctx: Context, x: jax.Array, pad: Sequence[int], value: Any = 0) -> jax.Array:
    """constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor; widths are given from the last dimension on."""
    widths = [(0, 0, 0)] * (x.ndim - len(pad) // 2) + [(low, high, 0) for low, high in _pairs(pad)]
    return lax.pad(x, scalar(value, ctx.dtype), widths)


def _pairs(widths: Sequence[int]) -> list[tuple[int, int]]:
    """Widths in torch's order (last dimension first) as one pair for each dimension, in the order of dimensions."""
    return list(zip(widths[::2], widths[1::2], strict=True))[::-1]


def _reflections(x: jax.Array, dim: int, before: int, after: int) -> tuple[jax.Array, jax.Array]:
    size = x.shape[dim]
    left = lax.rev(slice_along(x, dim, 1, before + 1), (dim,))
    return left, lax.rev(slice_along(x, dim, size - 1 - after, size - 1), (dim,))


def _edges(x: jax.Array, dim: int, before: int, after: int) -> tuple[jax.Array, jax.Array]:
    size, places = x.shape[dim], tuple(range(x.ndim))
    left, right = slice_along(x, dim, 0, 1), slice_along(x, dim, size - 1, size)
    return (
        lax.broadcast_in_dim(left, with_size(x.shape, dim, before), places),
        lax.broadcast_in_dim(right, with_size(x.shape, dim, after), places),
    )


def _padded(x: jax.Array, widths: Sequence[int], strips: Strips) -> jax.Array:
    pairs = _pairs(widths)
    for dim, (low, high) in enumerate(pairs, x.ndim - len(pairs)):
        if low > 0 or high > 0:
            left, right = strips(x, dim, max(low, 0), max(high, 0))
            x = lax.concatenate([left, x, right], dim)
        x = slice_along(x, dim, max(-low, 0), x.shape[dim] - max(-high, 0))
    return x


def _register(name: str, strips: Strips) -> None:
    @op(f"{name}1d", autocast=Autocast.FLOAT32)
    @op(f"{name}2d", autocast=Autocast.FLOAT32, shapes=like_input(f"{name}2d.default"))
    @op(f"{name}3d", autocast=Autocast.FLOAT32, shapes=like_input(f"{name}3d.default"))
    def lower(ctx: Context, x: jax.Array, padding: Sequence[int]) -> jax.Array:
        """reflection_pad2d(Tensor self, SymInt[4] padding) -> Tensor"""
        return _padded(x, padding, strips)

    @op(*(f"{name}{rank}d_backward" for rank in (1, 2, 3)))
    def lower_backward(ctx: Context, grad: jax.Array, x: jax.Array, padding: Sequence[int]) -> jax.Array:
        """reflection_pad2d_backward(Tensor grad_output, Tensor self, SymInt[4] padding) -> Tensor"""
        wide = compute_dtype(ctx.dtype)
        transposed = jax.linear_transpose(lambda inner: _padded(inner, padding, strips), cast(x, wide))
        return cast(transposed(cast(grad, wide))[0], ctx.dtype)


_register("reflection_pad", _reflections)
_register("replication_pad", _edges)
