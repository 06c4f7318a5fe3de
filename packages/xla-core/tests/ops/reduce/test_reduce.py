"""Reductions against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xla_core.ops.reduce.reduce  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
NAN, INF = float("nan"), float("inf")


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=-4 if dtype.is_signed else 0, high=5)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64]
REAL = [dtype for dtype in DTYPES if not dtype.is_complex]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (), (0,), (2, 0, 3)], ids=str)
def test_whole(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = values(dtype, *shape)
    for func in (A.sum.default, A.prod.default, A.any.default, A.all.default, A.count_nonzero.default):
        check_lowering(func, x)
    if x.numel() and not dtype.is_complex:
        for func in (A.max.default, A.min.default, A.amax.default, A.amin.default, A.aminmax.default):
            check_lowering(func, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keepdim", [False, True])
def test_along(dtype: torch.dtype, keepdim: bool) -> None:
    x = values(dtype, 3, 4, 2)
    for func in (A.sum.dim_IntList, A.any.dims, A.all.dims):
        for dims in ([1], [-1, 0], None):
            check_lowering(func, x, dims, keepdim)
    check_lowering(A.prod.dim_int, x, -2, keepdim)
    check_lowering(A.any.dim, x, 0, keepdim)
    check_lowering(A.all.dim, x, -1, keepdim)
    check_lowering(A.count_nonzero.dim_IntList, x, [0, -1])
    if not dtype.is_complex:
        check_lowering(A.amax.default, x, [0, 2], keepdim)
        check_lowering(A.amin.default, x, [-2], keepdim)
        check_lowering(A.aminmax.default, x, dim=1, keepdim=keepdim)


@pytest.mark.parametrize("func", [A.any.dims, A.all.dims])
def test_truth_of_no_dimension_is_elementwise(func: Any) -> None:
    check_lowering(func, torch.tensor([[0, 2], [3, 0]]), [])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_mean(dtype: torch.dtype) -> None:
    check_lowering(A.mean.default, values(dtype, 3, 5))
    check_lowering(A.mean.default, values(dtype, 0))
    check_lowering(A.mean.dim, values(dtype, 3, 5, 2), [0, -1], True)
    check_lowering(A.mean.dim, values(dtype), [0])


@pytest.mark.parametrize("wanted", [torch.float64, torch.int32, torch.bool, torch.float16], ids=str)
def test_sum_and_prod_in_another_dtype(wanted: torch.dtype) -> None:
    x = torch.tensor([[3.7, 1.2], [0.0, -2.9]])
    check_lowering(A.sum.default, x, dtype=wanted)
    check_lowering(A.sum.dim_IntList, x, [1], True, dtype=wanted)
    check_lowering(A.prod.dim_int, x, 0, dtype=wanted)


def test_integer_sum_wraps() -> None:
    check_lowering(A.sum.default, torch.full((3,), 100, dtype=torch.uint8), dtype=torch.uint8)
    check_lowering(A.sum.default, torch.tensor([2**63 - 1, 5]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_sums_do_not_stall(dtype: torch.dtype) -> None:
    check_lowering(A.sum.default, torch.ones(20000, dtype=dtype))
    check_lowering(A.mean.dim, torch.ones(2, 20000, dtype=dtype), [1])


SPECIAL = torch.tensor([[1.0, NAN, 3.0, 3.0], [-INF, 2.0, INF, INF], [-INF, -INF, -INF, -INF], [-0.0, 0.0, -1.0, 0.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_nan_and_infinity(dtype: torch.dtype) -> None:
    x = SPECIAL.to(dtype)
    for func in (A.sum.dim_IntList, A.mean.dim, A.nansum.default, A.amax.default, A.amin.default, A.logsumexp.default, A.any.dims):
        check_lowering(func, x, [1])
    for func in (A.max.dim, A.min.dim, A.argmax.default, A.argmin.default):
        check_lowering(func, x, 1)
    check_lowering(A.aminmax.default, x, dim=1)
    check_lowering(A.nansum.default, x)
    check_lowering(A.count_nonzero.default, x)


@pytest.mark.parametrize("dtype", REAL, ids=str)
def test_extremes_with_position(dtype: torch.dtype) -> None:
    x = values(dtype, 4, 6, 3)
    for func in (A.max.dim, A.min.dim):
        check_lowering(func, x, 1)
        check_lowering(func, x, -1, True)
        check_lowering(func, values(dtype), 0)
    if dtype is not torch.bool:
        for func in (A.argmax.default, A.argmin.default):
            check_lowering(func, x)
            check_lowering(func, x, None, True)
            check_lowering(func, x, -2, True)
            check_lowering(func, values(dtype), 0)


def test_positions_over_an_empty_batch() -> None:
    check_lowering(A.argmax.default, torch.empty(0, 3), 1)
    check_lowering(A.max.dim, torch.empty(2, 0, 3), 2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("correction", [None, 0, 1, 2, 0.5])
def test_moments(dtype: torch.dtype, correction: float | None) -> None:
    x = values(dtype, 3, 5, 4)
    check_lowering(A.var.correction, x, [0, -1], correction=correction, keepdim=True)
    check_lowering(A.std.correction, x, None, correction=correction)
    check_lowering(A.var_mean.correction, x, [1], correction=correction)
    check_lowering(A.std_mean.correction, x, [-2], correction=correction, keepdim=True)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_moments_without_freedom() -> None:
    for x in (
        torch.tensor([1.0]),
        torch.tensor(2.0),
        torch.empty(0),
        torch.empty(2, 0),
        torch.tensor([1.0, INF]),
        torch.tensor([1.0, 2.0]),
    ):
        check_lowering(A.var.correction, x, None, correction=1)
        check_lowering(A.std_mean.correction, x, None, correction=3)


@pytest.mark.parametrize("order", [2, 1, 0, 3, -2.5, INF, -INF])
def test_vector_norm(order: float) -> None:
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.bfloat16):
        x = values(dtype, 3, 4)
        check_lowering(A.linalg_vector_norm.default, x, order)
        check_lowering(A.linalg_vector_norm.default, x, order, [-1], True)
        check_lowering(A.norm.Scalar, x, order)
        check_lowering(A.norm.ScalarOpt_dim, x, order, [0], True)
    check_lowering(A.linalg_vector_norm.default, torch.tensor([1.0, NAN, 0.0]), order)


def test_norm_dtypes_and_empties() -> None:
    x = values(torch.float32, 2, 3)
    check_lowering(A.linalg_vector_norm.default, x, 2, None, dtype=torch.float64)
    check_lowering(A.linalg_vector_norm.default, values(torch.complex64, 4), 3, None, dtype=torch.complex128)
    check_lowering(A.norm.ScalarOpt_dtype, x, None, dtype=torch.float64)
    check_lowering(A.norm.ScalarOpt_dim_dtype, x, 1, [0], False, dtype=torch.float64)
    check_lowering(A.norm.ScalarOpt_dim, x, None, [1])
    for order in (0, 1, 2, 0.5):
        check_lowering(A.linalg_vector_norm.default, torch.empty(0), order)
        check_lowering(A.linalg_vector_norm.default, torch.empty(3, 0), order, [1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_logsumexp(dtype: torch.dtype) -> None:
    check_lowering(A.logsumexp.default, values(dtype, 3, 5), [1])
    check_lowering(A.logsumexp.default, values(dtype, 3, 5, 2), [0, -1], True)
    check_lowering(A.logsumexp.default, values(dtype), [0])


def test_logsumexp_of_large_and_of_none() -> None:
    check_lowering(A.logsumexp.default, torch.tensor([1000.0, 1000.0]), [0])
    check_lowering(A.logsumexp.default, torch.empty(2, 0), [1])
    check_lowering(A.logsumexp.default, torch.empty(0, 2), [1])


def test_truth_of_all() -> None:
    for x in (torch.tensor([True, False]), torch.tensor([True, True]), torch.empty(0, dtype=torch.bool)):
        check_lowering(A._is_all_true.default, x)
        check_lowering(A._is_any_true.default, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.complex64, torch.uint8], ids=str)
def test_trace(dtype: torch.dtype) -> None:
    check_lowering(A.trace.default, values(dtype, 3, 5))
    check_lowering(A.trace.default, values(dtype, 4, 2))
    check_lowering(A.trace.default, values(dtype, 0, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_hash_tensor(dtype: torch.dtype) -> None:
    x = (torch.arange(12).reshape(3, 4) % 5 - 1).to(dtype)
    for args in ((), (0,), (-1,), ([0, 1],)):
        check_lowering(A.hash_tensor.default, x, *args)
    check_lowering(A.hash_tensor.default, x, 1, keepdim=True)
