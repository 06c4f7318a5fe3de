"""Factories, fills and conversions against CPU torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import xla_core.ops.elementwise.create  # noqa: F401
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16]
WINDOWS = ["bartlett", "blackman", "hamming", "hann", "kaiser"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arange(dtype: torch.dtype) -> None:
    check_lowering(aten.arange.default, 10, dtype=dtype)
    check_lowering(aten.arange.start, 3, 9, dtype=dtype)
    check_lowering(aten.arange.start_step, 20, 1, -3, dtype=dtype)
    check_lowering(aten.arange.start_step, 1, 1, 1, dtype=dtype)


@pytest.mark.parametrize("bounds", [(0.1, 3, 0.1), (5, -5, -0.7), (0.5, 10, 1.5), (-1, 1, 0.125)])
def test_arange_with_fractions(bounds: tuple[float, float, float]) -> None:
    check_lowering(aten.arange.start_step, *bounds)
    check_lowering(aten.arange.start_step, *bounds, dtype=torch.float64)
    check_lowering(aten.range.step, *bounds)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 100])
def test_linspace(dtype: torch.dtype, steps: int) -> None:
    half = {"rtol": 0.01, "atol": 0.05} if dtype is torch.bfloat16 else {}  # torch rounds the step itself
    check_lowering(aten.linspace.default, 0, 10, steps, dtype=dtype, **half)
    check_lowering(aten.linspace.default, 9.5, 1.25, steps, dtype=dtype, **half)
    check_lowering(aten.logspace.default, 0, 2, steps, dtype=dtype, **half)


def test_linspace_of_tensors() -> None:
    start, end = torch.tensor(-1.0), torch.tensor(4.0)
    check_lowering(aten.linspace.Tensor_Tensor, start, end, 5)
    check_lowering(aten.linspace.Tensor_Scalar, start, 3.0, 5)
    check_lowering(aten.linspace.Scalar_Tensor, 0.5, end, 4)
    check_lowering(aten.logspace.Tensor_Tensor, start, end, 5, 2.0)
    check_lowering(aten.linspace.default, 1j, 2 + 1j, 3, dtype=torch.complex64)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool, torch.complex64])
def test_constants(dtype: torch.dtype) -> None:
    like = torch.ones(2, 3, dtype=dtype)
    check_lowering(aten.zeros.default, (2, 0), dtype=dtype)
    check_lowering(aten.ones.default, (), dtype=dtype)
    check_lowering(aten.full.default, (2, 3), True, dtype=dtype)
    check_lowering(aten.zeros_like.default, like)
    check_lowering(aten.ones_like.default, like, dtype=torch.int32)
    check_lowering(aten.full_like.default, like, 1)
    check_lowering(aten.new_full.default, like, (4,), 1)
    check_lowering(aten.new_zeros.default, like, (4,))
    check_lowering(aten.new_ones.default, like, (4,), dtype=torch.float64)
    check_lowering(aten.zero.default, like)
    check_lowering(aten.scalar_tensor.default, 1, dtype=dtype)
    check_lowering(aten.eye.m, 3, 5, dtype=dtype)


def test_full_infers_its_dtype() -> None:
    for value in (True, 3, 2.5, 1 + 2j):
        check_lowering(aten.full.default, (2,), value)


def test_empty_is_zero() -> None:
    for func, args in (
        (aten.empty.memory_format, ((2, 3),)),
        (aten.empty_strided.default, ((2, 3), (1, 2))),
        (aten.empty_like.default, (torch.ones(2, 3),)),
        (aten.new_empty.default, (torch.ones(1), (2, 3))),
    ):
        (got,) = lower_once(func, torch.zeros(2, 3), *args)
        assert torch.equal(got, torch.zeros(2, 3))


@pytest.mark.parametrize("size", [(3, 3), (4, 2), (2, 5), (0, 3), (3, 0)])
@pytest.mark.parametrize("offset", [-5, -1, 0, 2, 5])
def test_triangles(size: tuple[int, int], offset: int) -> None:
    check_lowering(aten.tril_indices.default, *size, offset)
    check_lowering(aten.triu_indices.default, *size, offset, dtype=torch.int32)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("length", [0, 1, 2, 9])
def test_windows(name: str, length: int) -> None:
    window = getattr(aten, f"{name}_window")
    check_lowering(window.default, length)
    check_lowering(window.periodic, length, False, dtype=torch.float64)


def test_window_parameters() -> None:
    check_lowering(aten.kaiser_window.beta, 7, True, 5.0)
    check_lowering(aten.hamming_window.periodic_alpha_beta, 7, False, 0.6, 0.4)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int8, torch.bool, torch.complex64])
def test_conversions(dtype: torch.dtype) -> None:
    check_lowering(aten._to_copy.default, torch.tensor([300.7, -1.0, 0.0, 0.5, 40000.0]), dtype=dtype)
    check_lowering(aten._to_copy.default, torch.tensor([3, -1, 0, 200]), dtype=dtype)
    check_lowering(aten.clone.default, torch.ones(2, 3).t().to(dtype))


def test_fill_and_copy() -> None:
    check_lowering(aten.fill.Scalar, torch.ones(2, 3), 2.5)
    (got,) = lower_once(aten.fill.Scalar, torch.ones(2), torch.ones(2), torch.tensor(7.5, dtype=torch.float64))
    assert got.tolist() == [7.5, 7.5]
    check_lowering(aten.fill.Tensor, torch.ones(3, dtype=torch.int64), torch.tensor(2.7))
    check_lowering(aten.copy.default, torch.ones(2, 3), torch.arange(3))
    check_lowering(aten.copy.default, torch.ones(2, 0), torch.ones(1, 1, dtype=torch.float64))


MAKERS: list[Callable[..., Tensor]] = [
    lambda out: torch.linspace(0.1, 1.7, 137, out=out),
    lambda out: torch.linspace(0, 3, 4, out=out),
    lambda out: torch.logspace(0, 3, 4, out=out),
    lambda out: torch.arange(4, out=out),
    lambda out: torch.arange(0, 4, out=out),
    lambda out: torch.range(0, 3, out=out),
    lambda out: torch.full((2, 2), 3, out=out),
    lambda out: torch.eye(2, out=out),
    lambda out: torch.ones(2, 2, out=out),
]
DTYPES_OF_OUT = [torch.float64, torch.float32, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", DTYPES_OF_OUT, ids=str)
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: f"line {make.__code__.co_firstlineno}")
@pytest.mark.filterwarnings("ignore:An output with one or more", "ignore:The number of elements in the out", "ignore:torch.range")
def test_what_is_made_for_out_has_its_dtype(make: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """In the precision of `out`; one of as many elements keeps its shape and place."""
    for shape in ((0,), (3,), (2, 3)):
        results = []
        for device in ("cpu", "xla"):
            whole = torch.zeros(shape, dtype=dtype, device=device)
            out = whole[:, 1:] if len(shape) == 2 else whole
            make(out=out)
            results += [out.cpu(), whole.cpu() if out.shape == whole[..., 1:].shape else out.cpu()]
        torch.testing.assert_close(results[2:], results[:2])


def test_random_numbers_for_out_are_those_that_are_made_without() -> None:
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        torch.manual_seed(3)
        made = torch.rand(50, dtype=dtype, device="xla")
        torch.manual_seed(3)
        assert torch.rand(50, out=torch.empty(0, dtype=dtype, device="xla")).cpu().equal(made.cpu())
