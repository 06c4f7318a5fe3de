"""Interpolation, image windows and sampling grids against CPU torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import xla_core.ops.nn.grid_sample
import xla_core.ops.nn.unfold
import xla_core.ops.nn.upsample  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

aten = torch.ops.aten
SIZES = [9, 7, 6]
OUTS = [[9, 7, 6], [18, 14, 12], [5, 12, 1], [27, 3, 13]]
NEAREST = [(rank, exact) for rank in (1, 2, 3) for exact in (False, True)]
BLENDED = [("upsample_linear1d", 1), ("upsample_bilinear2d", 2), ("upsample_trilinear3d", 3), ("upsample_bicubic2d", 2)]
ANTIALIASED = [("_upsample_bilinear2d_aa", 2), ("_upsample_bicubic2d_aa", 2), ("_upsample_lanczos2d_aa", 2)]
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def forward_and_backward(name: str, rank: int, out: list[int], arguments: list[Any]) -> None:
    """Check a row and the row of its gradient."""
    shape = [2, 3, *SIZES[:rank]]
    check_lowering(getattr(aten, name).default, torch.randn(shape), out[:rank], *arguments, **CLOSE)
    grad = torch.randn(2, 3, *out[:rank])
    check_lowering(getattr(aten, f"{name}_backward").default, grad, out[:rank], shape, *arguments, **CLOSE)


@pytest.mark.parametrize("out", OUTS, ids=str)
@pytest.mark.parametrize(("rank", "exact"), NEAREST)
def test_nearest(rank: int, exact: bool, out: list[int]) -> None:
    forward_and_backward(f"_upsample_nearest_exact{rank}d" if exact else f"upsample_nearest{rank}d", rank, out, [])


@pytest.mark.parametrize("out", OUTS, ids=str)
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("name", "rank"), BLENDED)
def test_blended(name: str, rank: int, align_corners: bool, out: list[int]) -> None:
    forward_and_backward(name, rank, out, [align_corners])


@pytest.mark.parametrize("out", OUTS[1:], ids=str)
@pytest.mark.parametrize(("name", "rank"), ANTIALIASED)
def test_antialiased(name: str, rank: int, out: list[int], needs: Callable[[str], None]) -> None:
    needs(name)
    forward_and_backward(name, rank, out, [False])


def test_given_scales() -> None:
    """The scale that the user asked for counts, not the ratio of the rounded sizes."""
    x = torch.randn(1, 2, 9, 7)
    for name in ("upsample_nearest2d", "_upsample_nearest_exact2d"):
        check_lowering(getattr(aten, name).default, x, [12, 9], 1.4, 1.3)
    for name in ("upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa"):
        check_lowering(getattr(aten, name).default, x, [12, 9], False, 1.4, 1.3, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint8, torch.bfloat16], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    x = (torch.rand(1, 2, 9, 7) * 255).to(dtype)
    check_lowering(aten.upsample_nearest2d.default, x, [5, 11])
    close = {"rtol": 0, "atol": 1} if dtype is torch.uint8 else {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    check_lowering(aten.upsample_bilinear2d.default, x, [5, 11], False, **close)


WINDOWS = [([2, 3], [1, 1], [0, 0], [1, 1]), ([3, 3], [1, 1], [1, 1], [2, 2]), ([2, 2], [2, 3], [1, 2], [1, 2])]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("batched", [True, False])
def test_columns(window: tuple[list[int], ...], batched: bool) -> None:
    x = torch.randn(2, 3, 7, 8)
    image = x if batched else x[0]
    check_lowering(aten.im2col.default, image, *window)
    check_lowering(aten.col2im.default, aten.im2col(image, *window), [7, 8], *window)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize(("rank", "mode"), [(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)])
def test_grid_sampler(rank: int, mode: int, padding: int, align_corners: bool) -> None:
    x, grid = torch.randn(2, 3, *[5, 6, 4][:rank]), torch.rand(2, *[4, 3, 2][:rank], rank) * 3 - 1.5
    forward = aten.grid_sampler_2d if rank == 2 else aten.grid_sampler_3d
    backward = aten.grid_sampler_2d_backward if rank == 2 else aten.grid_sampler_3d_backward
    check_lowering(forward.default, x, grid, mode, padding, align_corners, **CLOSE)
    grad = torch.randn(2, 3, *grid.shape[1:-1])
    check_lowering(backward.default, grad, x, grid, mode, padding, align_corners, [True, True], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("align_corners", [False, True])
def test_affine_grid(align_corners: bool) -> None:
    check_lowering(aten.affine_grid_generator.default, torch.randn(2, 2, 3), [2, 1, 4, 5], align_corners, **CLOSE)
    check_lowering(aten.affine_grid_generator.default, torch.randn(2, 3, 4), [2, 1, 3, 4, 1], align_corners, **CLOSE)
