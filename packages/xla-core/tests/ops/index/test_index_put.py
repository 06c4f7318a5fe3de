"""Writes by advanced indexing against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.index.index_put  # noqa: F401 - registers the family
from xla_core.base.errors import UnsupportedOperationError
from xla_core.testing.lowering import check_lowering, lower_once

A = torch.ops.aten
P, J, K = torch.tensor([[0, -1], [1, -2]]), torch.tensor([2, 0]), torch.tensor(1)
ROWS = torch.tensor([True, False, True])
PLANE = torch.tensor([[True, False, True, True], [False, False, False, False], [False, True, False, True]])
ONE, NONE = torch.tensor([False, True, False]), torch.zeros(3, dtype=torch.bool)
X = torch.arange(60.0).reshape(3, 4, 5)

# indices into a tensor of shape (3, 4, 5)
INDICES = {
    "one": [P],
    "second": [None, J],
    "two adjacent": [P, J],
    "two apart": [P, None, J],
    "0-d": [K],
    "0-d apart": [None, K, K],
    "empty": [torch.empty(0, dtype=torch.int64)],
    "int32": [None, None, J.int()],
    "mask of a row": [ROWS],
    "mask of two dimensions": [PLANE],
    "inner mask": [None, PLANE.t()[:, :3].contiguous()[:, :1].expand(4, 5)],
    "last mask": [None, None, torch.tensor([True, False, False, True, True])],
    "whole mask": [X.remainder(7) < 3],
    "empty mask": [NONE],
    "mask and number": [ROWS, K],
    "mask and as many": [ROWS, J],
    "mask and 2-d": [ROWS, P],
    "mask of one and more": [ONE, torch.tensor([3, 1, 0])],
    "mask of none and one": [NONE, K],
    "number and mask": [K, None, torch.tensor([True, False, False, True, True])],
    "two masks": [ROWS, torch.tensor([False, True, False, True])],
    "two masks, one of one": [ONE, torch.tensor([False, True, False, True])],
    "plane and number": [PLANE, torch.tensor([4])],
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("indices", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize("accumulate", [False, True])
def test_every_kind_of_index(indices: list[torch.Tensor | None], accumulate: bool) -> None:
    part = A.index.Tensor(X, indices)
    check_lowering(A.index_put.default, X, indices, torch.tensor(-1.5), accumulate)
    check_lowering(A.index_put.default, X, indices, torch.arange(float(part.numel())).reshape(part.shape), accumulate)
    if part.numel():
        check_lowering(A.index_put.default, X, indices, torch.arange(float(part.shape[-1])), accumulate)
        check_lowering(A._unsafe_index_put.default, X, indices, torch.ones((1,) * part.dim()), accumulate)


def test_bytes_are_a_mask() -> None:
    check_lowering(A.index_put.default, X, [ROWS.to(torch.uint8)], torch.arange(5.0))
    check_lowering(A.index_put.default, X, [ROWS.to(torch.uint8), K], torch.ones(2, 5), True)


def test_repeated_places_add_up() -> None:
    places = torch.tensor([0, 2, 2, -1])
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        x = torch.tensor([0, 1, 0], dtype=torch.int64).to(dtype)
        check_lowering(A.index_put.default, x, [places], torch.tensor([1, 0, 1, 1]).to(dtype), True)
        check_lowering(A.index_put.default, x, [x.bool()], torch.tensor([1]).to(dtype), True)


def test_empty_operands() -> None:
    check_lowering(A.index_put.default, torch.empty(0, 3), [None, torch.tensor([1])], torch.empty(0, 1))
    check_lowering(A.index_put.default, torch.empty(3, 0), [torch.tensor([1])], torch.empty(0))


def test_impl_and_masked_forms() -> None:
    check_lowering(A._index_put_impl.default, X, [P], torch.tensor(2.0), True, True)
    mask = torch.tensor([True, False])
    check_lowering(A._unsafe_masked_index_put_accumulate.default, X, mask, [None, None, J], torch.ones(3, 4, 2))


def test_a_0d_mask_is_refused_beside_others() -> None:
    with pytest.raises(UnsupportedOperationError, match="0-d mask"):
        lower_once(A.index_put.default, X, X, [torch.tensor(True), J], torch.tensor(1.0))
