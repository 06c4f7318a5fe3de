"""Selection by masks against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.index.masked  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=-4, high=5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_fill(dtype: torch.dtype) -> None:
    x, mask = values(dtype, 3, 4), torch.rand(3, 4) > 0.5
    check_lowering(A.masked_fill.Scalar, x, mask, 1)
    check_lowering(A.masked_fill.Scalar, x, mask[0], 0)
    check_lowering(A.masked_fill.Tensor, x, mask[:, :1], torch.tensor(1, dtype=dtype))
    check_lowering(A.masked_fill.Scalar, values(dtype, 4), mask, 1)
    check_lowering(A.masked_fill.Scalar, values(dtype), torch.tensor(True), 1)
    check_lowering(A.masked_fill.Scalar, values(dtype, 0, 4), mask[0], 1)


def test_masked_fill_with_infinity() -> None:
    check_lowering(A.masked_fill.Scalar, torch.ones(3), torch.tensor([True, False, True]), float("-inf"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_masked_scatter(dtype: torch.dtype) -> None:
    x, mask = values(dtype, 3, 4), torch.rand(3, 4) > 0.5
    check_lowering(A.masked_scatter.default, x, mask, values(dtype, 20))
    check_lowering(A.masked_scatter.default, x, mask[0], values(dtype, 3, 4))
    check_lowering(A.masked_scatter.default, values(dtype, 4), mask, values(dtype, 15))
    check_lowering(A.masked_scatter.default, x, torch.zeros(3, 4, dtype=torch.bool), values(dtype, 0))
    check_lowering(A.masked_scatter.default, values(dtype), torch.tensor(True), values(dtype, 1))
    if dtype.is_floating_point:
        for sizes in ((20,), (3, 4), (5,)):
            mask = torch.arange(12).reshape(3, 4) % 3 == 0
            check_lowering(A.masked_scatter_backward.default, x, mask, sizes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("diagonal", [0, 2, -1, 9, -9])
def test_triangles(dtype: torch.dtype, diagonal: int) -> None:
    for func in (A.tril.default, A.triu.default):
        check_lowering(func, values(dtype, 2, 3, 5), diagonal)
        check_lowering(func, values(dtype, 0, 4), diagonal)


def test_nonzero_static() -> None:
    x = torch.tensor([[0, 3, 0], [1, 0, 2]])
    for size in (0, 2, 3, 8):
        check_lowering(A.nonzero_static.default, x, size=size)
        check_lowering(A.nonzero_static.default, x, size=size, fill_value=7)
    check_lowering(A.nonzero_static.default, torch.empty(0, 2), size=3)
    check_lowering(A.nonzero_static.default, torch.tensor([float("nan"), 0.0]), size=2)
