"""Reads at computed positions against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.index.index  # noqa: F401 - registers the family
from xla_core.base.errors import UnsupportedOperationError
from xla_core.testing.lowering import check_lowering, lower_once

A = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=0, high=9)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gather(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 5, 3)
    for dim in (0, 1, -1):
        check_lowering(A.gather.default, x, dim, torch.randint(0, x.shape[dim], (2, 3, 2)))
        check_lowering(A.gather.default, x, dim, torch.randint(0, x.shape[dim], (4, 5, 3)))
    check_lowering(A.gather.default, values(dtype), 0, torch.tensor(0))
    check_lowering(A.gather.default, values(dtype), 0, torch.tensor([0, 0]))
    check_lowering(A.gather.default, values(dtype, 3), 0, torch.tensor(2))
    check_lowering(A.gather.default, x, 1, torch.empty(4, 0, 3, dtype=torch.int64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_index_select(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 5)
    check_lowering(A.index_select.default, x, 0, torch.tensor([3, 0, 0]))
    check_lowering(A.index_select.default, x, -1, torch.tensor([3, 1], dtype=torch.int32))
    check_lowering(A.index_select.default, x, 1, torch.tensor(2))
    check_lowering(A.index_select.default, values(dtype), 0, torch.tensor([0]))
    check_lowering(A.index_select.default, x, 0, torch.empty(0, dtype=torch.int64))
    check_lowering(A.index_select.default, values(dtype, 3, 0), 0, torch.tensor([1, 1]))


P, J, K = torch.tensor([[0, -1, 2], [1, 1, -3]]), torch.tensor([2, 0, -1]), torch.tensor(1)
INDICES = {
    "one": [P],
    "second": [None, J],
    "last": [None, None, None, J],
    "two adjacent": [None, P, J],
    "two apart": [P, None, J],
    "0-d apart": [K, None, None, J],
    "0-d": [None, K],
    "all": [P, J, K, J],
    "int32": [None, J.int()],
    "trailing none": [P, None, None],
    "column by row": [None, J[:, None], J],
    "empty": [None, torch.empty(0, dtype=torch.int64)],
    "empty 2-d": [torch.empty(2, 0, dtype=torch.int64), None, K],
}


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_advanced_indexing(indices: list[torch.Tensor | None], dtype: torch.dtype) -> None:
    x = values(dtype, 3, 4, 5, 3)
    check_lowering(A.index.Tensor, x, indices)
    check_lowering(A._unsafe_index.Tensor, x, indices)


def test_indexing_of_nothing() -> None:
    check_lowering(A.index.Tensor, torch.empty(3, 0), [torch.tensor([1, 1])])
    check_lowering(A.index.Tensor, torch.empty(0, 3), [None, torch.tensor([1, 1])])


def test_masks_cannot_be_read() -> None:
    x = torch.ones(3)
    with pytest.raises(UnsupportedOperationError, match="depends on data"):
        lower_once(A.index.Tensor, x, x, [torch.tensor([True, False, True])])


def test_masked_index() -> None:
    mask = torch.tensor([True, False, True])
    check_lowering(A._unsafe_masked_index.default, values(torch.float32, 4, 3), mask, [None, J], 7.5)
    check_lowering(A._unsafe_masked_index.default, values(torch.int64, 4, 3), mask, [J, None], -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_take(dtype: torch.dtype) -> None:
    x = values(dtype, 3, 4)
    check_lowering(A.take.default, x, torch.tensor([[0, 11], [-1, -12]]))
    check_lowering(A.take.default, x, torch.tensor(5))
    check_lowering(A.take.default, x, torch.empty(0, 2, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_embedding(dtype: torch.dtype) -> None:
    weight = values(dtype, 6, 4)
    for indices in (
        torch.tensor([[0, 5], [2, 2]]),
        torch.tensor(3),
        torch.empty(0, 3, dtype=torch.int64),
        torch.tensor([1], dtype=torch.int32),
    ):
        check_lowering(A.embedding.default, weight, indices)
    check_lowering(A.embedding.default, weight, torch.tensor([1, 2]), 2, True)


def test_out_of_range_reads_the_nearest() -> None:
    x, index = torch.arange(4.0), torch.tensor([9, 3])
    torch.testing.assert_close(lower_once(A.gather.default, torch.empty(2), x, 0, index)[0], torch.tensor([3.0, 3.0]))
    torch.testing.assert_close(lower_once(A.index.Tensor, torch.empty(2), x, [torch.tensor([-9, 9])])[0], torch.tensor([0.0, 3.0]))
