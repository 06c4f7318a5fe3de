"""The operators of grouped products: their references, JAX's kernels for them, their shapes and gradients."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_core.ops.nn.kernel_checks import check_floating, check_integers
from xla_core.ops.platforms import PlatformKernel
from xla_core.ops.table import Context
from xla_core.ops.xla_namespace import define

Maybe = Any
_WHAT = "a grouped product"
_TILING = (128, 128, 128)


def _from_offset(rhs: jax.Array, groups: int, group_offset: Maybe) -> jax.Array:
    """`rhs` for all groups, with zeros for those before `group_offset` and after its last one."""
    if group_offset is None and rhs.shape[0] == groups:
        return rhs
    first = 0 if group_offset is None else group_offset.reshape(()).astype(np.int32)
    room = jnp.zeros((groups + rhs.shape[0], *rhs.shape[1:]), rhs.dtype)
    return jax.lax.dynamic_update_slice(room, rhs, (first, 0, 0))[:groups]


def _gmm(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, tiling: Sequence[int] | None, group_offset: Maybe, transpose_rhs: bool
) -> jax.Array:
    factors = jnp.swapaxes(rhs, 1, 2) if transpose_rhs else rhs
    return jax.lax.ragged_dot(lhs, _from_offset(factors, group_sizes.shape[0], group_offset), group_sizes)


def _gmm_on_tpu(
    lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, tiling: Sequence[int] | None, group_offset: Maybe, transpose_rhs: bool
) -> jax.Array | None:
    """JAX's megablox kernel, for numbers of rows that it can tile; it writes nothing where there is no group."""
    tiles = _tiles(tiling, lhs.shape[0])
    if tiles is None:
        return None
    from jax.experimental.pallas.ops.tpu.megablox import gmm as native  # slow to import

    offset = None if group_offset is None else group_offset.reshape(()).astype(np.int32)
    found: jax.Array = native(lhs, rhs, group_sizes, lhs.dtype, tiles, offset, None, transpose_rhs)
    first = jnp.int32(0) if offset is None else offset
    ends = jnp.cumsum(group_sizes)
    start = jnp.where(first > 0, ends[jnp.maximum(first - 1, 0)], 0)
    rows = jnp.arange(lhs.shape[0])
    inside = (rows >= start) & (rows < ends[jnp.minimum(first + rhs.shape[0], len(group_sizes)) - 1])
    return jnp.where(inside[:, None], found, jnp.zeros((), found.dtype))


def _tiles(tiling: Sequence[int] | None, rows: int) -> tuple[int, int, int] | None:
    first, second, third = _TILING if tiling is None else tiling
    chosen = min(first, rows)
    return (chosen, second, third) if chosen and rows % chosen == 0 and chosen % 8 == 0 else None


def _transposed(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    tiling: Sequence[int] | None = None,
    group_offset: Maybe = None,
    num_actual_groups: int | None = None,
) -> jax.Array:
    numbers = jax.lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[])
    found = jax.lax.ragged_dot_general(lhs, rhs, group_sizes, numbers)
    count = found.shape[0] if num_actual_groups is None else num_actual_groups
    if group_offset is None:
        return found[:count]
    room = jnp.concatenate([found, jnp.zeros_like(found)])
    return jax.lax.dynamic_slice_in_dim(room, group_offset.reshape(()).astype(np.int32), count)


def _transposed_on_tpu(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    tiling: Sequence[int] | None = None,
    group_offset: Maybe = None,
    num_actual_groups: int | None = None,
) -> jax.Array | None:
    """JAX's megablox kernel; it writes nothing for groups without rows."""
    tiles = _tiles(tiling, rhs.shape[0])
    if tiles is None:
        return None
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm as native  # slow to import

    offset = None if group_offset is None else group_offset.reshape(()).astype(np.int32)
    found: jax.Array = native(lhs, rhs, group_sizes, lhs.dtype, tiles, offset, num_actual_groups)
    sizes = group_sizes if offset is None else jnp.roll(group_sizes, -offset)
    return jnp.where((sizes[: found.shape[0]] > 0)[:, None, None], found, jnp.zeros((), found.dtype))


GROUPED = PlatformKernel(_gmm, tpu=_gmm_on_tpu)
TRANSPOSED = PlatformKernel(_transposed, tpu=_transposed_on_tpu)


@functools.partial(jax.custom_vjp, nondiff_argnames=("platform", "tiling", "num_actual_groups"))
def _per_group(
    platform: str, lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, tiling: Any, group_offset: Maybe, num_actual_groups: int | None
) -> jax.Array:
    """`TRANSPOSED`, with a gradient: neither its kernel nor `ragged_dot_general` has one of both factors."""
    found: jax.Array = TRANSPOSED(platform, lhs, rhs, group_sizes, tiling, group_offset, num_actual_groups)
    return found


def _per_group_forward(
    platform: str, lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, tiling: Any, group_offset: Maybe, num_actual_groups: int | None
) -> tuple[jax.Array, tuple[Any, ...]]:
    return _per_group(platform, lhs, rhs, group_sizes, tiling, group_offset, num_actual_groups), (lhs, rhs, group_sizes, group_offset)


def _per_group_backward(
    platform: str, tiling: Any, num_actual_groups: int | None, held: tuple[Any, ...], grad: jax.Array
) -> tuple[Any, ...]:
    lhs, rhs, group_sizes, group_offset = held
    to_lhs = GROUPED(platform, rhs, grad, group_sizes, tiling, group_offset, True).T
    to_rhs = GROUPED(platform, lhs.T, grad, group_sizes, tiling, group_offset, False)
    return to_lhs.astype(lhs.dtype), to_rhs.astype(rhs.dtype), None, None


_per_group.defvjp(_per_group_forward, _per_group_backward)


def _operation(context: Context, **arguments: Any) -> Any:
    return GROUPED(context.platform, **arguments)


def _check_groups(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: Sequence[int] | None, group_offset: torch.Tensor | None
) -> None:
    check_floating(_WHAT, lhs=lhs, rhs=rhs)
    check_integers(_WHAT, group_sizes=group_sizes, group_offset=group_offset)
    if group_sizes.ndim != 1:
        raise ValueError(f"group_sizes is (groups,), got {tuple(group_sizes.shape)}")
    if group_offset is not None and group_offset.numel() != 1:
        raise ValueError(f"group_offset is one number, got {tuple(group_offset.shape)}")
    if tiling is not None and len(tiling) != 3:
        raise ValueError(f"a tiling is three numbers, got {list(tiling)}")


def _rows(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Sequence[int] | None,
    group_offset: torch.Tensor | None,
    transpose_rhs: bool,
) -> torch.Tensor:
    _check_groups(lhs, rhs, group_sizes, tiling, group_offset)
    if lhs.ndim != 2 or rhs.ndim != 3 or lhs.shape[1] != rhs.shape[2 if transpose_rhs else 1]:
        raise ValueError(f"gmm takes (m, k) and (groups, k, n), got {tuple(lhs.shape)} and {tuple(rhs.shape)}, {transpose_rhs=}")
    if rhs.shape[0] > group_sizes.shape[0]:
        raise ValueError(
            f"gmm has a size for each group, got {group_sizes.shape[0]} sizes for the {rhs.shape[0]} groups of {tuple(rhs.shape)}"
        )
    return lhs.new_empty(lhs.shape[0], rhs.shape[1 if transpose_rhs else 2])


def _products(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Sequence[int] | None,
    group_offset: torch.Tensor | None,
    num_actual_groups: int | None,
) -> torch.Tensor:
    _check_groups(lhs, rhs, group_sizes, tiling, group_offset)
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0]:
        raise ValueError(f"tgmm takes (k, m) and (m, n), got {tuple(lhs.shape)} and {tuple(rhs.shape)}")
    return lhs.new_empty(group_sizes.shape[0] if num_actual_groups is None else num_actual_groups, lhs.shape[0], rhs.shape[1])


ROWS = define(
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, Tensor? group_offset=None, bool transpose_rhs=False) -> Tensor",
    _operation,
    _rows,
    ("lhs", "rhs"),
)


PRODUCTS = define(
    "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, Tensor? group_offset=None, "
    "int? num_actual_groups=None) -> Tensor",
    lambda context, tiling, **rest: _per_group(platform=context.platform, tiling=None if tiling is None else tuple(tiling), **rest),
    _products,
    ("lhs", "rhs"),
)
