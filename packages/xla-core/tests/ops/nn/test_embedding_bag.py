"""Bags of embeddings against torch: values and gradients of `torch.nn.functional.embedding_bag`, which is what users see.

The tensors that go from the forward operation to the gradient have other shapes on the CPU than on devices, so that they
are not compared themselves.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import xla_core.ops.nn.embedding_bag  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering, lower_once

A = torch.ops.aten
MODES = {"sum": 0, "mean": 1, "max": 2}
INDICES, OFFSETS = torch.tensor([1, 4, 4, 2, 0, 4, 3]), torch.tensor([0, 3, 3, 5])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def on_meta(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg.to("meta") if isinstance(arg, torch.Tensor) else arg for arg in args)


def forward(weight: torch.Tensor, *args: Any) -> list[torch.Tensor]:
    return lower_once(A._embedding_bag.default, A._embedding_bag.default(*on_meta((weight, *args))), weight, *args)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_and_gradient(mode: str, padding: int | None, last: bool, dtype: torch.dtype) -> None:
    weight = torch.randn(6, 3, dtype=dtype, requires_grad=True)
    offsets = torch.cat([OFFSETS, torch.tensor([len(INDICES)])]) if last else OFFSETS
    expected = F.embedding_bag(INDICES, weight, offsets, mode=mode, padding_idx=padding, include_last_offset=last)
    grad = torch.randn_like(expected)
    plain, number = weight.detach(), -1 if padding is None else padding
    got, bags, sizes, maxima = forward(plain, INDICES, offsets, False, MODES[mode], False, None, last, number)
    torch.testing.assert_close(got, expected.detach())
    wanted = torch.autograd.grad(expected, weight, grad)[0]
    rest = (bags, sizes, maxima, 6, False, MODES[mode])
    dense = lower_once(A._embedding_bag_dense_backward.default, plain, grad, INDICES, *rest, None, number)
    torch.testing.assert_close(dense[0], wanted)
    same = lower_once(A._embedding_bag_backward.default, plain, grad, INDICES, offsets, *rest, False, None, number)
    torch.testing.assert_close(same[0], wanted)


@pytest.mark.parametrize("padding", [None, 4])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_weights_of_samples(padding: int | None, by_frequency: bool) -> None:
    weight, samples = torch.randn(6, 3, requires_grad=True), torch.randn(7, requires_grad=True)
    expected = F.embedding_bag(
        INDICES, weight, OFFSETS, mode="sum", per_sample_weights=samples, padding_idx=padding, scale_grad_by_freq=by_frequency
    )
    grad, plain, number = torch.randn_like(expected), weight.detach(), -1 if padding is None else padding
    got, bags, sizes, maxima = forward(plain, INDICES, OFFSETS, by_frequency, 0, False, samples.detach(), False, number)
    torch.testing.assert_close(got, expected.detach())
    of_weight, of_samples = torch.autograd.grad(expected, (weight, samples), grad)
    rest = (bags, sizes, maxima, 6, by_frequency, 0, samples.detach(), number)
    torch.testing.assert_close(lower_once(A._embedding_bag_dense_backward.default, plain, grad, INDICES, *rest)[0], of_weight)
    per_sample = (grad, plain, INDICES, OFFSETS, bags, 0, number)
    mine = lower_once(A._embedding_bag_per_sample_weights_backward.default, samples.detach(), *per_sample)[0]
    torch.testing.assert_close(mine, of_samples)


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_nothing_in_the_bags(mode: int) -> None:
    weight = torch.randn(4, 2)
    for offsets in (torch.tensor([0, 0]), torch.empty(0, dtype=torch.int64)):
        empty = torch.empty(0, dtype=torch.int64)
        got = forward(weight, empty, offsets, False, mode)
        torch.testing.assert_close(got[0], torch.zeros(len(offsets), 2))
        rest = (got[1], got[2], got[3], 4, False, mode, None)
        torch.testing.assert_close(lower_once(A._embedding_bag_dense_backward.default, weight, got[0], empty, *rest)[0], weight * 0)


@pytest.mark.parametrize("norm", [1.0, 2.0, float("inf")])
def test_renorm(norm: float) -> None:
    for dtype in (torch.float32, torch.float64):
        weight = torch.randn(6, 4, dtype=dtype)
        check_lowering(A.embedding_renorm.default, weight, torch.tensor([[0, 2], [2, 5]]), 0.8, norm)
        check_lowering(A.embedding_renorm.default, weight, torch.empty(0, dtype=torch.int64), 0.8, norm)
