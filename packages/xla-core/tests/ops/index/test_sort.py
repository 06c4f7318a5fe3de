"""Order along a dimension against CPU torch.

Where torch does not say which of equal elements it names, the values are compared, and the positions by what they point to.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import torch

from xla_core.ops.index.sort import key_of_two_floats
from xla_core.testing.lowering import check_lowering, lower_once

A = torch.ops.aten
NAN, INF = float("nan"), float("inf")
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
NUMBERS = DTYPES[:-1]
SPECIAL = torch.tensor([NAN, 1.0, INF, -INF, -0.0, 0.0, -1e-40, 1e-40, -5.0, NAN, -torch.tensor(NAN).item()])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def many_ties(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randint(0 if dtype in (torch.uint8, torch.bool) else -3, 4, shape).to(dtype)


def check_pointed(func: Any, x: torch.Tensor, dim: int, *args: Any, **kwargs: Any) -> None:
    """Values as torch's, positions that lead to these values, none twice."""
    expected = func(x, *args, **kwargs)
    got, where = lower_once(func, expected, x, *args, **kwargs)
    torch.testing.assert_close(got, expected[0], equal_nan=True, rtol=0, atol=0)
    pointed = torch.gather(x, dim, where) if where.dim() == x.dim() else torch.gather(x, dim, where.unsqueeze(dim)).squeeze(dim)
    torch.testing.assert_close(pointed, expected[0], equal_nan=True, rtol=0, atol=0)
    assert where.dtype == torch.int64
    if where.dim() == x.dim() and where.numel():
        assert all(len(set(row.tolist())) == len(row) for row in where.movedim(dim, -1).reshape(-1, where.shape[dim]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_stable_sort(dtype: torch.dtype, descending: bool) -> None:
    for shape in ((40,), (20, 3), (), (2, 0, 3)):
        for dim in {0, -1} if len(shape) == 2 else {0}:
            check_lowering(A.sort.stable, many_ties(dtype, *shape), stable=True, dim=dim, descending=descending)
    check_lowering(A.sort.default, many_ties(dtype, 3, 5), 0, descending)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_special_values(dtype: torch.dtype, descending: bool) -> None:
    x = SPECIAL.to(dtype)
    check_lowering(A.sort.stable, x, stable=True, descending=descending)
    expected = A.topk(x, 5, 0, descending)
    torch.testing.assert_close(lower_once(A.topk.default, expected, x, 5, 0, descending)[0], expected[0], equal_nan=True)


def test_integers_at_their_limits() -> None:
    x = torch.tensor([2**62, -(2**63), 2**63 - 1, 5, -(2**62), -(2**63)])
    check_lowering(A.sort.stable, x, stable=True)
    check_lowering(A.sort.stable, x, stable=True, descending=True)
    check_lowering(A.sort.stable, torch.tensor([-(2**31), 2**31 - 1, 0], dtype=torch.int32), stable=True, descending=True)
    check_pointed(A.topk.default, x, 0, 3)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_wide_unsigned(dtype: torch.dtype) -> None:
    highest = torch.iinfo(dtype).max
    x = torch.tensor([3, highest, 1, highest // 2 + 1, highest // 2, 0], dtype=dtype)
    check_lowering(A.sort.stable, x, stable=True)
    check_lowering(A.sort.stable, x, stable=True, descending=True)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dtype: torch.dtype, largest: bool) -> None:
    x = many_ties(dtype, 4, 20)
    check_pointed(A.topk.default, x, 1, 5, 1, largest)
    check_pointed(A.topk.default, x, 0, 4, 0, largest)
    check_pointed(A.topk.default, x, 1, 0, -1, largest)
    check_lowering(A.topk.default, many_ties(dtype), 1, 0, largest)
    check_lowering(A.topk.default, many_ties(dtype, 0, 4), 2, 1, largest)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_kth_and_medians(dtype: torch.dtype) -> None:
    x = many_ties(dtype, 5, 8)
    check_pointed(A.kthvalue.default, x, 1, 3)
    check_pointed(A.kthvalue.default, x, 0, 5, 0, True)
    for func in (A.median.dim, A.nanmedian.dim):
        check_pointed(func, x, 1, 1)
        check_pointed(func, x, 0, 0, True)
        check_lowering(func, many_ties(dtype), 0)
    for func in (A.median.default, A.nanmedian.default):
        check_lowering(func, x)
        check_lowering(func, x[:0])


def test_medians_of_nan() -> None:
    x = torch.tensor([[1.0, NAN, 3.0, 2.0, NAN], [NAN, NAN, NAN, NAN, NAN], [4.0, 1.0, 3.0, 2.0, 0.0], [NAN, NAN, NAN, 7.0, NAN]])
    check_lowering(A.median.dim, x, 1)
    check_lowering(A.nanmedian.dim, x[[0, 2, 3]], 1)
    torch.testing.assert_close(lower_once(A.nanmedian.dim, A.nanmedian.dim(x, 1), x, 1)[0], x.nanmedian(1).values, equal_nan=True)
    check_lowering(A.median.default, x)
    check_lowering(A.nanmedian.default, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mode(dtype: torch.dtype) -> None:
    x = many_ties(dtype, 4, 11)
    check_lowering(A.mode.default, x)
    check_lowering(A.mode.default, x, 0, True)
    check_lowering(A.mode.default, many_ties(dtype))
    check_lowering(A.mode.default, many_ties(dtype, 1, 5), 0)


def test_sums_of_two_float32_have_keys_of_their_order() -> None:
    """By which TPUs sort float64: such sums are all that they have of it."""
    torch.manual_seed(0)
    high = torch.randn(1000) * 10.0 ** torch.randint(-20, 20, (1000,))
    low = high * 2.0**-25 * torch.randn(1000)
    x = torch.cat([high.double() + low.double(), high.double(), torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan]).double()])
    with jax.enable_x64(True):
        keys = torch.from_numpy(np.array(key_of_two_floats(x.numpy())))  # type: ignore[arg-type]
    assert keys.sort(stable=True)[1].tolist() == x.sort(stable=True)[1].tolist()
    assert keys[-5] == keys[-4], "zeros are equal"
