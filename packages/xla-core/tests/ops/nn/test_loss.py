"""Loss lowerings against CPU torch: every reduction, weights, ignored targets, values where formulas break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import xla_core.ops.nn.loss
import xla_core.ops.nn.margin_loss  # noqa: F401 - registers the family
from xla_core.ops.table import TABLE, Context
from xla_core.testing.lowering import check_lowering

aten = torch.ops.aten
REDUCTIONS = [0, 1, 2]
POINTWISE: list[tuple[Any, Any, tuple[float, ...]]] = [
    (aten.mse_loss, aten.mse_loss_backward, ()),
    (aten.smooth_l1_loss, aten.smooth_l1_loss_backward, (0.7,)),
    (aten.huber_loss, aten.huber_loss_backward, (0.7,)),
    (aten.soft_margin_loss, aten.soft_margin_loss_backward, ()),
]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def incoming(shape: tuple[int, ...], reduction: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A gradient of the loss itself."""
    return torch.randn(shape if reduction == 0 else ()).to(dtype)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("forward", "backward", "parameters"), POINTWISE, ids=lambda v: str(v))
def test_pointwise(forward: Any, backward: Any, parameters: tuple[float, ...], reduction: int) -> None:
    for shape in ((4, 5), (), (0, 3)):
        x, target = torch.randn(shape), torch.randn(shape)
        check_lowering(forward.default, x, target, reduction, *parameters)
        check_lowering(backward.default, incoming(shape, reduction), x, target, reduction, *parameters)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("backward", "parameters"), [row[1:] for row in POINTWISE if row[0] is not aten.soft_margin_loss], ids=lambda v: str(v)
)
def test_pointwise_of_many_gradients(backward: Any, parameters: tuple[float, ...], reduction: int) -> None:
    x, target, grads = torch.randn(3), torch.randn(3), torch.randn(2, 3)
    for args in ((grads, x, target), (grads[:, :1], x, target), (grads, x, target.expand(2, 3))):
        check_lowering(backward.default, *args, reduction, *parameters)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_pointwise_dtypes(dtype: torch.dtype) -> None:
    x, target = torch.randn(4, 5).to(dtype), torch.randn(4, 5).to(dtype)
    for forward, _, parameters in POINTWISE:
        check_lowering(forward.default, x, target, 0, *parameters)


def test_smooth_l1_without_knee() -> None:
    x, target = torch.randn(6), torch.randn(6)
    target[0] = x[0]
    check_lowering(aten.smooth_l1_loss.default, x, target, 0, 0.0)
    check_lowering(aten.smooth_l1_loss_backward.default, torch.ones(6), x, target, 0, 0.0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy(reduction: int, weighted: bool) -> None:
    x, target = torch.cat([torch.rand(7), torch.tensor([0.0, 1.0, 0.0, 1.0])]), torch.rand(11)
    target[-2:] = torch.tensor([0.0, 1.0])
    weight = torch.rand(11) if weighted else None
    check_lowering(aten.binary_cross_entropy.default, x, target, weight, reduction)
    check_lowering(
        aten.binary_cross_entropy_backward.default, incoming((11,), reduction), x, target, weight, reduction, rtol=1e-4, atol=1e-5
    )
    logits = torch.randn(11) * 30
    check_lowering(aten.binary_cross_entropy_with_logits.default, logits, target, weight, torch.rand(11), reduction)
    check_lowering(aten.binary_cross_entropy_with_logits.default, logits, target, weight, None, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nll_loss(reduction: int, weighted: bool, ignore_index: int, dtype: torch.dtype) -> None:
    x, target = torch.randn(6, 4).to(dtype), torch.tensor([0, 2, 3, ignore_index, 1, 0])
    weight = torch.rand(4).to(dtype) if weighted else None
    close = {"rtol": 5e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}  # CPU torch adds up in bfloat16
    check_lowering(aten.nll_loss_forward.default, x, target, weight, reduction, ignore_index, **close)
    _, total = aten.nll_loss_forward(x, target, weight, reduction, ignore_index)
    grad = incoming((6,), reduction, dtype)
    check_lowering(aten.nll_loss_backward.default, grad, x, target, weight, reduction, ignore_index, total, **close)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss2d(reduction: int) -> None:
    x, target, weight = torch.randn(2, 4, 3, 5), torch.randint(0, 4, (2, 3, 5)), torch.rand(4)
    target[0, 0, 0] = -100
    check_lowering(aten.nll_loss2d_forward.default, x, target, weight, reduction, -100)
    _, total = aten.nll_loss2d_forward(x, target, weight, reduction, -100)
    check_lowering(aten.nll_loss2d_backward.default, incoming((2, 3, 5), reduction), x, target, weight, reduction, -100, total)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_loss_of_one_example(reduction: int) -> None:
    x, target, weight = torch.randn(4), torch.tensor(2), torch.rand(4)
    check_lowering(aten.nll_loss_forward.default, x, target, weight, reduction, -100)
    _, total = aten.nll_loss_forward(x, target, weight, reduction, -100)
    check_lowering(aten.nll_loss_backward.default, torch.randn(()), x, target, weight, reduction, -100, total)


def test_nll_loss_ignoring_everything_is_nan() -> None:
    check_lowering(aten.nll_loss_forward.default, torch.randn(3, 4), torch.full((3,), -100), None, 1, -100)


@pytest.mark.parametrize("target", [7, -1])
def test_nll_loss_outside_the_classes_is_nan(target: int) -> None:
    """With XLA_CHECKS=0, when nothing raises, no wrong class is picked in silence."""
    inferred = tuple(jax.ShapeDtypeStruct((), np.float32) for _ in range(2))
    with jax.enable_x64(True):
        loss, _ = TABLE["aten::nll_loss_forward"].lower(Context(inferred), jnp.ones((2, 4)), jnp.array([0, target]), None, 2, -100)
    assert np.isnan(np.asarray(loss))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("p", [1, 2])
def test_multi_margin_loss(p: int, reduction: int) -> None:
    x, target, weight = torch.randn(3, 5), torch.tensor([0, 4, 2]), torch.rand(5)
    for scale in (None, weight):
        check_lowering(aten.multi_margin_loss.default, x, target, p, 0.8, scale, reduction)
        check_lowering(aten.multi_margin_loss_backward.default, incoming((3,), reduction), x, target, p, 0.8, scale, reduction)
    check_lowering(aten.multi_margin_loss.default, x[0], target[0], p, 1, None, reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_multilabel_margin_loss(reduction: int) -> None:
    x = torch.randn(3, 4)
    target = torch.tensor([[3, 0, -1, 1], [-1, 0, 1, 2], [0, 1, 2, 3]])
    check_lowering(aten.multilabel_margin_loss_forward.default, x, target, reduction)
    _, is_target = aten.multilabel_margin_loss_forward(x, target, reduction)
    check_lowering(aten.multilabel_margin_loss_backward.default, incoming((3,), reduction), x, target, reduction, is_target)
    check_lowering(aten.multilabel_margin_loss_forward.default, x[0], target[0], reduction)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_margin_loss_of_one_example_is_a_number(reduction: str) -> None:
    x, target = torch.randn(5), torch.tensor([0, 2, -1, 0, 1])
    loss = torch.nn.functional.multilabel_margin_loss
    torch.testing.assert_close(loss(x.to("xla"), target.to("xla"), reduction=reduction).cpu(), loss(x, target, reduction=reduction))
