"""Grouped products: rows of one matrix, group after group, each group with a matrix of its own; with gradients."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.ops.nn.grouped import gmm_kernel

gmm_xla = gmm_kernel.ROWS
gmm_non_xla = gmm_xla  # which takes CPU tensors too


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
    result: torch.Tensor = gmm_xla(lhs, rhs, group_sizes, None if tiling is None else list(tiling), offset, transpose_rhs)
    return result


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
    result: torch.Tensor = gmm_kernel.PRODUCTS(
        lhs, rhs, group_sizes, None if tiling is None else list(tiling), _offset_tensor(group_offset, lhs), num_actual_groups
    )
    return result


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


def repeat_with_fixed_output_size(input: torch.Tensor, repeats: torch.Tensor, total_repeat_length: int) -> torch.Tensor:
    """Each row of `input` as often as `repeats` says, cut or filled up with the last row to `total_repeat_length` rows; nothing is read."""
    if repeats.ndim != 1 or repeats.shape[0] != input.shape[0]:
        raise ValueError(f"repeats is ({input.shape[0]},), one for each row of {tuple(input.shape)}, got {tuple(repeats.shape)}")
    places = torch.arange(total_repeat_length, device=repeats.device)
    rows = torch.searchsorted(repeats.cumsum(0), places, right=True).clamp(max=input.shape[0] - 1)
    return input.index_select(0, rows)
