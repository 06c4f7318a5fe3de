"""Counts in bins against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.index.histogram  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
NAN, INF = float("nan"), float("inf")
floats = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_histc(dtype: torch.dtype) -> None:
    x = torch.randn(50, dtype=dtype)
    check_lowering(A.histc.default, x, 10)
    check_lowering(A.histc.default, x, 7, -1.0, 1.5)
    check_lowering(A.histc.default, torch.arange(11, dtype=dtype), 5, 0, 10)
    check_lowering(A.histc.default, torch.full((3,), 2.0, dtype=dtype), 4)
    check_lowering(A.histc.default, torch.empty(0, dtype=dtype), 4)


@floats
@pytest.mark.parametrize("density", [False, True])
def test_histogram(dtype: torch.dtype, density: bool) -> None:
    x, weight = torch.randn(4, 50, dtype=dtype), torch.rand(4, 50, dtype=dtype)
    check_lowering(A.histogram.bin_ct, x, 7, density=density)
    check_lowering(A.histogram.bin_ct, x, 7, range=[-0.5, 2.0], weight=weight, density=density)
    edges = torch.tensor([-1.0, -0.5, 0.7, 0.8, 9.0], dtype=dtype)
    check_lowering(A.histogram.bins_tensor, x, edges, weight=weight, density=density)


@floats
def test_values_on_edges_fall_into_the_bin_on_their_right_but_for_the_last(dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.7, 0.9, 1.0, -0.1, 1.1, NAN], dtype=dtype)
    check_lowering(A.histogram.bin_ct, x, 10, range=[0.0, 1.0])
    check_lowering(A.histogram.bins_tensor, x, torch.linspace(0, 1, 11, dtype=dtype))
    check_lowering(A.histogram.bins_tensor, torch.tensor([1.0, INF, -INF], dtype=dtype), torch.tensor([-INF, 0.0, INF], dtype=dtype))


def test_histograms_of_nothing_and_of_one_value() -> None:
    check_lowering(A.histogram.bin_ct, torch.empty(0), 3)
    check_lowering(A.histogram.bin_ct, torch.full((5,), 2.0), 4)
    check_lowering(A.histogram.bin_ct, torch.randn(5), 4, range=[1.0, 1.0])


@floats
@pytest.mark.parametrize("density", [False, True])
def test_histogramdd(dtype: torch.dtype, density: bool) -> None:
    x, weight = torch.rand(3, 20, 2, dtype=dtype), torch.rand(3, 20, dtype=dtype)
    bounds = [0.0, 1.0, 0.2, 0.7]
    check_lowering(A._histogramdd_bin_edges.default, x, [3, 4])
    check_lowering(A._histogramdd_bin_edges.default, x, [3, 4], range=bounds)
    check_lowering(A._histogramdd_from_bin_cts.default, x, [3, 4], weight=weight, density=density)
    check_lowering(A._histogramdd_from_bin_cts.default, x, [3, 4], range=bounds, density=density)
    edges = [torch.tensor([0.0, 0.1, 0.5], dtype=dtype), torch.tensor([0.2, 0.9], dtype=dtype)]
    check_lowering(A._histogramdd_from_bin_tensors.default, x, edges, weight=weight, density=density)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("arguments", [{}, {"bins": 4}, {"bins": 7, "min": 1, "max": 9}], ids=str)
def test_histc_of_integers(dtype: torch.dtype, arguments: dict[str, int]) -> None:
    """As other accelerators have it; the CPU refuses it."""
    x = torch.randint(0, 100, (50,), dtype=dtype)
    found = torch.histc(x.to("xla"), **arguments)
    assert found.dtype == dtype and torch.equal(found.cpu().double(), torch.histc(x.double(), **arguments))
