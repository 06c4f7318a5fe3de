"""Searches against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.index.search  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("right", [False, True])
def test_searchsorted(dtype: torch.dtype, right: bool) -> None:
    rows = torch.randint(0, 9, (3, 7)).sort(-1).values.to(dtype)
    wanted = torch.randint(0, 10, (3, 4)).to(dtype)
    check_lowering(A.searchsorted.Tensor, rows, wanted, right=right)
    check_lowering(A.searchsorted.Tensor, rows[0].contiguous(), wanted, right=right, out_int32=True)
    check_lowering(A.searchsorted.Tensor, rows[0].contiguous(), wanted[0, 0], side="right" if right else "left")
    check_lowering(A.searchsorted.Scalar, rows[0].contiguous(), 4, right=right)
    check_lowering(A.searchsorted.Scalar, rows[0].contiguous(), 4.5, side="right")
    check_lowering(A.bucketize.Tensor, wanted, rows[1].contiguous(), right=right)
    check_lowering(A.bucketize.Scalar, 3.5, rows[1].contiguous(), out_int32=True, right=right)


@pytest.mark.parametrize("right", [False, True])
def test_searchsorted_edges(right: bool) -> None:
    check_lowering(A.searchsorted.Tensor, torch.tensor([1.0, 2.0, INF, NAN]), torch.tensor([NAN, INF, -INF, 2.0, 1.5]), right=right)
    check_lowering(A.searchsorted.Tensor, torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([1.0, 2.5]), right=right)
    check_lowering(A.searchsorted.Tensor, torch.empty(0), torch.tensor([1.0]), right=right)
    check_lowering(A.searchsorted.Tensor, torch.tensor([1.0]), torch.empty(2, 0), right=right)
    check_lowering(A.searchsorted.Tensor, torch.tensor([1, 2, 3]), torch.tensor([2, 3, 4], dtype=torch.int32), right=right)
    unsorted = torch.tensor([[3.0, 1.0, 2.0], [9.0, 8.0, 7.0]])
    check_lowering(A.searchsorted.Tensor, unsorted, torch.tensor([[2.0], [8.0]]), right=right, sorter=unsorted.argsort(-1))


@pytest.mark.parametrize("tests", [3, 100], ids=["few", "many"])
@pytest.mark.parametrize("invert", [False, True])
def test_isin(tests: int, invert: bool) -> None:
    elements = torch.randint(0, 60, (4, 5))
    check_lowering(A.isin.Tensor_Tensor, elements, torch.randint(0, 60, (tests,)), invert=invert)
    check_lowering(A.isin.Tensor_Tensor, elements.float(), torch.randint(0, 60, (tests,)), invert=invert)
    check_lowering(A.isin.Tensor_Tensor, torch.tensor([NAN, -0.0, 1.0]), torch.tensor([NAN, 0.0] * tests), invert=invert)
    check_lowering(A.isin.Tensor_Tensor, elements, torch.empty(0, dtype=torch.int64), invert=invert)
    check_lowering(A.isin.Tensor_Tensor, elements[:0], elements, invert=invert)
    check_lowering(A.isin.Tensor_Scalar, elements, 7, invert=invert)
    check_lowering(A.isin.Scalar_Tensor, 7, elements, invert=invert)
