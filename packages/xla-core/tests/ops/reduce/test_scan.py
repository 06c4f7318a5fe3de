"""Running reductions against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.reduce.scan  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
NAN, INF = float("nan"), float("inf")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=-3 if dtype.is_signed else 0, high=4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 7), (), (0,), (3, 0), (2, 3, 5)], ids=str)
def test_sums_and_products(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = values(dtype, *shape)
    for dim in {0, -1}:
        check_lowering(A.cumsum.default, x, dim)
        check_lowering(A.cumprod.default, x, dim)


def test_dtype_argument() -> None:
    x = torch.tensor([1.9, -2.9, 3.5])
    for wanted in (torch.float64, torch.int32):
        check_lowering(A.cumsum.default, x, 0, dtype=wanted)
        check_lowering(A.cumprod.default, x, 0, dtype=wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_extremes(dtype: torch.dtype) -> None:
    for shape, dim in (((3, 9), 1), ((), 0), ((0, 2), 0), ((4, 3), -2)):
        for func in (A.cummax.default, A.cummin.default):
            check_lowering(func, values(dtype, *shape), dim)


def test_extremes_keep_nan_and_take_the_last_of_equals() -> None:
    x = torch.tensor([[1.0, 2.0, NAN, 3.0, NAN, 9.0], [INF, -INF, INF, -INF, 0.0, -0.0], [5.0, 5.0, 4.0, 4.0, 5.0, 4.0]])
    for func in (A.cummax.default, A.cummin.default):
        check_lowering(func, x, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_logcumsumexp(dtype: torch.dtype) -> None:
    for shape in ((3, 9), (), (0, 2)):
        for func in (A.logcumsumexp.default, A._logcumsumexp.default):
            check_lowering(func, values(dtype, *shape), -1)


def test_logcumsumexp_of_infinities() -> None:
    check_lowering(A.logcumsumexp.default, torch.tensor([-INF, -INF, 1.0, 1000.0, -1000.0, INF, 2.0, INF]), 0)
    check_lowering(A.logcumsumexp.default, torch.tensor([1.0, NAN, 2.0, -INF]), 0)
    check_lowering(A.logcumsumexp.default, torch.tensor([complex(-INF, 0), 1 + 2j, 500 - 1j]), 0)
