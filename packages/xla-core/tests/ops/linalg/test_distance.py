"""Distances between rows against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.linalg.distance  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
INF = float("inf")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_all_pairs(p: float, dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 4, 3, dtype=dtype), torch.randn(2, 5, 3, dtype=dtype)
    y[:, 0] = x[:, 0]  # a distance of zero has a gradient of zero
    distances = A._cdist_forward(x, y, p, None)
    check_lowering(A._cdist_forward.default, x, y, p, None)
    check_lowering(A._cdist_forward.default, x[0], y[:1].expand(3, 5, 3).contiguous(), p, 2)
    check_lowering(A._cdist_backward.default, torch.randn_like(distances), x, y, p, distances)
    rows = torch.randn(5, 3, dtype=dtype)
    rows[2] = rows[4]
    distances = A._pdist_forward(rows, p)
    check_lowering(A._pdist_forward.default, rows, p)
    check_lowering(A._pdist_backward.default, torch.randn_like(distances), rows, p, distances)


def test_by_matrix_product() -> None:
    x, y = torch.randn(30, 4), torch.randn(2, 6, 4)
    check_lowering(A._euclidean_dist.default, x.expand(2, 30, 4), y, rtol=1e-4, atol=1e-4)
    check_lowering(A._cdist_forward.default, x, x[:7] + 1, 2.0, 1, rtol=1e-4, atol=1e-4)
    check_lowering(A._cdist_forward.default, x, x[:7] + 1, 2.0, 2)


def test_empty_operands() -> None:
    for p in (0.0, 1.0, 2.0, 3.0, INF):
        check_lowering(A._cdist_forward.default, torch.empty(3, 0), torch.empty(2, 0), p, None)
        check_lowering(A._cdist_forward.default, torch.empty(0, 2), torch.empty(3, 2), p, None)
    check_lowering(A._pdist_forward.default, torch.empty(1, 3), 2.0)
    check_lowering(A._cdist_backward.default, torch.empty(0, 3), torch.empty(0, 2), torch.ones(3, 2), 2.0, torch.empty(0, 3))


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 2.5, INF, -INF])
def test_dist(p: float) -> None:
    x, y = torch.randn(3, 4), torch.randn(4)
    check_lowering(A.dist.default, x, y, p)
    check_lowering(A.dist.default, x.to(torch.complex64), y.to(torch.complex64), p)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, INF])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_renorm(p: float, dtype: torch.dtype) -> None:
    for dim in (0, -1):
        check_lowering(A.renorm.default, torch.randn(3, 4, 2).to(dtype), p, dim, 1.5)
