"""Softmax lowerings against CPU torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import xla_core.ops.nn.softmax  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

aten = torch.ops.aten
SHAPES = [((), 0), ((5,), -1), ((3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), -3), ((0, 4), 1), ((4, 0), 1)]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
@pytest.mark.parametrize("func", [aten._softmax, aten._log_softmax], ids=str)
def test_softmax(func: torch._ops.OpOverloadPacket, shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    x = (torch.randn(shape) * 5).to(dtype)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    check_lowering(func.default, x, dim, False, **close)
    output = func(x, dim, False)
    backward = aten._softmax_backward_data if func is aten._softmax else aten._log_softmax_backward_data
    check_lowering(backward.default, torch.randn(shape).to(dtype), output, dim, dtype, **close)


@pytest.mark.parametrize("func", [aten._softmax, aten._log_softmax], ids=str)
def test_infinities_and_nan(func: torch._ops.OpOverloadPacket) -> None:
    inf = float("inf")
    rows = torch.tensor([[1.0, -inf, 2.0], [-inf, -inf, -inf], [inf, 0.0, 1.0], [float("nan"), 0.0, 1.0], [1e30, -1e30, 0.0]])
    check_lowering(func.default, rows, 1, False)


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_safe_softmax(dtype: torch.dtype | None) -> None:
    x = torch.randn(4, 5)
    x[1] = -float("inf")
    x[2, 3] = -float("inf")
    check_lowering(aten._safe_softmax.default, x, -1, dtype)
    check_lowering(aten._safe_softmax.default, x, 0)
    check_lowering(aten._safe_softmax.default, torch.zeros(()), 0)


def test_masked_softmax_same_shape() -> None:
    x, mask = torch.randn(2, 3, 4), torch.rand(2, 3, 4) < 0.4
    mask[..., 0] = False
    check_lowering(aten._masked_softmax.default, x, mask, 2, 2)
    check_lowering(aten._masked_softmax.default, x, mask, 1, 2)
    output = aten._masked_softmax(x, mask, 2, 2)
    check_lowering(aten._masked_softmax_backward.default, torch.randn_like(x), output, mask, 2)


def test_masked_softmax_attention_masks() -> None:
    x = torch.randn(2, 3, 4, 4)
    source, padding = torch.rand(4, 4) < 0.4, torch.rand(2, 4) < 0.4
    source[:, 0] = padding[:, 0] = False
    check_lowering(aten._masked_softmax.default, x, source, 3, 0)
    check_lowering(aten._masked_softmax.default, x, padding, 3, 1)
    source[1] = True
    check_lowering(aten._masked_softmax.default, x, source, 3, 0)
