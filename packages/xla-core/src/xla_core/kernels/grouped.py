"""Grouped products: rows of one matrix, group after group, each group with a matrix of its own; with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_core.frontend.jax_call import call_jax
from xla_core.kernels.operators import define
from xla_core.kernels.platform import Kernel

Maybe = Any
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


GROUPED = Kernel(_gmm, tpu=_gmm_on_tpu)
TRANSPOSED = Kernel(_transposed, tpu=_transposed_on_tpu)


def _operation(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array, tiling: Any, group_offset: Maybe, transpose_rhs: bool) -> Any:
    return GROUPED(lhs, rhs, group_sizes, tiling, group_offset, transpose_rhs)


def _rows(lhs: torch.Tensor, rhs: torch.Tensor, transpose_rhs: bool, **rest: Any) -> torch.Tensor:
    if lhs.ndim != 2 or rhs.ndim != 3 or lhs.shape[1] != rhs.shape[2 if transpose_rhs else 1]:
        raise ValueError(f"gmm takes (m, k) and (groups, k, n), got {tuple(lhs.shape)} and {tuple(rhs.shape)}, {transpose_rhs=}")
    return lhs.new_empty(lhs.shape[0], rhs.shape[1 if transpose_rhs else 2])


def _products(lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, num_actual_groups: int | None, **rest: Any) -> torch.Tensor:
    if lhs.ndim != 2 or rhs.ndim != 2 or lhs.shape[1] != rhs.shape[0]:
        raise ValueError(f"tgmm takes (k, m) and (m, n), got {tuple(lhs.shape)} and {tuple(rhs.shape)}")
    return lhs.new_empty(group_sizes.shape[0] if num_actual_groups is None else num_actual_groups, lhs.shape[0], rhs.shape[1])


gmm_xla = define(
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, Tensor? group_offset=None, bool transpose_rhs=False) -> Tensor",
    _operation,
    _rows,
    ("lhs", "rhs"),
)


def _offset_tensor(group_offset: torch.Tensor | int | None, like: torch.Tensor) -> torch.Tensor | None:
    if group_offset is None or isinstance(group_offset, torch.Tensor):
        return group_offset
    return torch.tensor([group_offset], dtype=torch.int32, device=like.device)


def gmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] | None = None,
    group_offset: torch.Tensor | int | None = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """Rows of lhs (m, k), group after group, times that group's rhs (groups, k, n): (m, n). Rows of no group give zeros; differentiable.

    group_sizes: (all groups,) integers. group_offset: the group that the first of rhs belongs to. transpose_rhs: rhs is (groups, n, k).
    tiling: block sizes of the kernel.
    """
    offset = _offset_tensor(group_offset, lhs)
    found: torch.Tensor = gmm_xla(lhs, rhs, group_sizes, None if tiling is None else list(tiling), offset, transpose_rhs)
    return found


_tgmm_op = define(
    "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, Tensor? group_offset=None, "
    "int? num_actual_groups=None) -> Tensor",
    lambda lhs, rhs, group_sizes, tiling, group_offset, num_actual_groups: TRANSPOSED(
        lhs, rhs, group_sizes, tiling, group_offset, num_actual_groups
    ),
    _products,
    ("lhs", "rhs"),
)


def tgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] = (512, 512, 512),
    group_offset: torch.Tensor | int | None = None,
    num_actual_groups: int | None = None,
) -> torch.Tensor:
    """For each group its columns of lhs (k, m) times its rows of rhs (m, n): (groups, k, n); groups without rows give zeros.

    group_offset, num_actual_groups: the first group, and how many. tiling: block sizes of the kernel.
    """
    found: torch.Tensor = _tgmm_op(
        lhs, rhs, group_sizes, None if tiling is None else list(tiling), _offset_tensor(group_offset, lhs), num_actual_groups
    )
    return found


def gmm_backward(
    grad: torch.Tensor,
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] = (512, 512, 512),
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of lhs and rhs in `gmm(lhs, rhs, group_sizes)`, of that of its result."""
    to_lhs = gmm(grad, rhs, group_sizes, tiling, transpose_rhs=True)
    return to_lhs, tgmm(lhs.t(), grad, group_sizes, tiling, num_actual_groups=rhs.shape[0])


class GMM(torch.autograd.Function):
    """`gmm` with a gradient, as a function to apply: `GMM.apply(lhs, rhs, group_sizes, tiling)`."""

    @staticmethod
    def forward(
        ctx: Any, lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: tuple[int, int, int] = (512, 512, 512)
    ) -> torch.Tensor:
        """The grouped product."""
        ctx.save_for_backward(lhs, rhs, group_sizes)
        ctx.tiling = tiling
        return gmm(lhs, rhs, group_sizes, tiling)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of lhs and rhs."""
        lhs, rhs, group_sizes = ctx.saved_tensors
        return *gmm_backward(grad_output, lhs, rhs, group_sizes, ctx.tiling), None, None


def _repeated(x: jax.Array, repeats: jax.Array, total_repeat_length: int) -> jax.Array:
    return jnp.repeat(x, repeats, axis=0, total_repeat_length=total_repeat_length)


def repeat_with_fixed_output_size(input: torch.Tensor, repeats: torch.Tensor, total_repeat_length: int) -> torch.Tensor:
    """Each row of `input` as often as `repeats` says, cut or filled up with the last row to `total_repeat_length` rows; nothing is read."""
    found: torch.Tensor = call_jax(_repeated, (input, repeats), {"total_repeat_length": total_repeat_length})
    return found


# The operations take CPU tensors too.
gmm_non_xla = gmm_xla
