"""Rearranging elements against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.shape.rearrange  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
DTYPES = [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=0, high=9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_joining(dtype: torch.dtype) -> None:
    x, y = values(dtype, 2, 3), values(dtype, 2, 4)
    check_lowering(A.cat.default, [x, y, x], 1)
    check_lowering(A.cat.default, [x, y.t().contiguous()[:, :1].expand(4, 3)], -2)
    check_lowering(A.cat.default, [torch.empty(0), x, torch.empty(0, 3)])
    check_lowering(A.cat.default, [torch.empty(0, dtype=dtype), torch.empty(0, dtype=dtype)])
    for dim in (0, -1, 1):
        check_lowering(A.stack.default, [x, x], dim)
        check_lowering(A._stack.default, [values(dtype, 3), values(dtype, 3)], min(dim, 1))
    check_lowering(A.stack.default, [values(dtype), values(dtype)], 0)


def test_joining_promotes() -> None:
    check_lowering(A.cat.default, [torch.tensor([1, 2]), torch.tensor([0.5]), torch.tensor([True])])
    check_lowering(A.stack.default, [torch.tensor(1), torch.tensor(0.5)])


def test_block_diagonal_and_chunks() -> None:
    check_lowering(A.block_diag.default, [torch.ones(2, 3), torch.tensor(5), torch.arange(3), torch.empty(1, 0), torch.empty(0, 2)])
    tensors = [values(torch.float32, 5, 2), values(torch.float32, 2, 2), values(torch.float32, 4, 2)]
    check_lowering(A._chunk_cat.default, tensors, 0, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_repeating(dtype: torch.dtype) -> None:
    for shape, repeats in (((2, 3), (2, 1)), ((2, 3), (1, 2, 3)), ((), (2, 2)), ((), ()), ((3,), (0, 2)), ((0, 2), (3, 1))):
        check_lowering(A.repeat.default, values(dtype, *shape), repeats)


def test_repeat_interleave() -> None:
    for dtype in (torch.int64, torch.int32):
        check_lowering(A.repeat_interleave.Tensor, torch.tensor([2, 0, 3, 1], dtype=dtype), output_size=6)
        check_lowering(A.repeat_interleave.Tensor, torch.tensor([0, 0], dtype=dtype), output_size=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mirror_and_rotate(dtype: torch.dtype) -> None:
    x = values(dtype, 3, 4, 2)
    for dims in ([0], [-1, 1], [0, 1, 2], []):
        check_lowering(A.flip.default, x, dims)
    for shifts, dims in (([2], [0]), ([-5], [1]), ([1, 7], [-1, 0]), ([5], []), ([0], [1])):
        check_lowering(A.roll.default, x, shifts, dims)
    for k in (-1, 0, 1, 2, 3, 6):
        check_lowering(A.rot90.default, x, k, [0, -1])
    check_lowering(A.rot90.default, x)
    check_lowering(A.flip.default, values(dtype), [0])
    check_lowering(A.roll.default, values(dtype), [3])
    check_lowering(A.roll.default, values(dtype, 0, 3), [2], [0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_channels(dtype: torch.dtype) -> None:
    check_lowering(A.pixel_shuffle.default, values(dtype, 2, 8, 3, 2), 2)
    check_lowering(A.pixel_shuffle.default, values(dtype, 9, 1, 2), 3)
    check_lowering(A.pixel_unshuffle.default, values(dtype, 1, 2, 3, 4, 6), 2)
    check_lowering(A.channel_shuffle.default, values(dtype, 2, 6, 3, 2), 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_parts(dtype: torch.dtype) -> None:
    x = values(dtype, 5, 4)
    for func in (A.split_copy.Tensor, A.unsafe_split.Tensor):
        check_lowering(func, x, 2)
        check_lowering(func, x, 3, -1)
    for func in (A.split_with_sizes_copy.default, A.unsafe_split_with_sizes.default):
        check_lowering(func, x, [1, 0, 4])
        check_lowering(func, x, [3, 1], -1)
    check_lowering(A.unbind_copy.int, x)
    check_lowering(A.unbind_copy.int, x, -1)
    check_lowering(A.narrow_copy.default, x, 0, 1, 3)
    check_lowering(A.narrow_copy.default, x, -1, -3, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_diag_embed(dtype: torch.dtype) -> None:
    for offset in (0, 2, -1):
        check_lowering(A.diag_embed.default, values(dtype, 2, 3), offset)
        check_lowering(A.diag_embed.default, values(dtype, 2, 3), offset, 0, -2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64], ids=str)
def test_cross(dtype: torch.dtype) -> None:
    check_lowering(A.linalg_cross.default, values(dtype, 4, 3), values(dtype, 4, 3))
    check_lowering(A.linalg_cross.default, values(dtype, 3, 1, 2), values(dtype, 3, 5, 1), dim=0)


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_vectors_without_elements_are_left_out(dim: int) -> None:
    for others in ([], [torch.ones(2, 3)]):
        tensors = [torch.empty(0), *others, torch.empty(0)]
        assert torch.cat([each.to("xla") for each in tensors], dim).cpu().equal(torch.cat(tensors, dim))
