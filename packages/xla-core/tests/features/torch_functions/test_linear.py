"""`linear` is recorded whole, forward and backward, and still does all that torch's composition does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

import torch_xla
from xla_core.base.private_torch import torch_version
from xla_core.engine.runtime.client import current_recorder

# Before, torch has no gradient of the whole for complex numbers.
WHOLE = torch_version >= (2, 12)


def recorded() -> list[str]:
    """Names of the pending operations."""
    return [entry[0].name for entry in current_recorder().pending_graph.entries if type(entry) is tuple]


@pytest.fixture(autouse=True)
def _nothing_pending() -> None:
    torch_xla.sync()


def inputs(device: str, lead: tuple[int, ...] = (5, 2), bias: bool = True, dtype: torch.dtype = torch.float32) -> list[Tensor | None]:
    """Input, weight and bias, leaves that want gradients."""
    generator = torch.Generator().manual_seed(2)
    shapes = [(*lead, 4), (3, 4), (3,)]
    made: list[Tensor | None] = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]
    return made if bias else [*made[:2], None]


def on_both(action: Callable[[str], Any], **close: float) -> None:
    """Assert that an action gives the same tensors on both devices."""
    mine, theirs = action("xla"), action("cpu")
    torch.testing.assert_close([each.detach().cpu() for each in mine], [each.detach() for each in theirs], **close)


@pytest.mark.parametrize("lead", [(), (5,), (5, 2), (0,), (2, 3, 2)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
def test_values_and_gradients(lead: tuple[int, ...], bias: bool) -> None:
    def action(device: str) -> list[Tensor]:
        x, weight, offset = inputs(device, lead, bias)
        assert x is not None and weight is not None
        out = F.linear(x, weight, offset)
        wanted = [each for each in (x, weight, offset) if each is not None]
        return [out, *torch.autograd.grad(out.square().sum(), wanted)]

    on_both(action, rtol=1e-5, atol=1e-5)


def test_complex_gradients_are_conjugated() -> None:
    def action(device: str) -> Any:
        made = [each for each in inputs(device, dtype=torch.complex64) if each is not None]
        cotangent = torch.full((5, 2, 3), 1 - 2j).to(device)
        return torch.autograd.grad(F.linear(made[0] * 1j, made[1], made[2] * 1j), made, cotangent)

    on_both(action, rtol=1e-5, atol=1e-5)


def test_some_gradients_only() -> None:
    for chosen in ([0], [1], [2], [0, 2], [1, 2]):

        def action(device: str, chosen: list[int] = chosen) -> Any:
            made = [each.detach() for each in inputs(device) if each is not None]
            wanted = [made[place].requires_grad_() for place in chosen]
            return torch.autograd.grad(F.linear(*made).square().sum(), wanted)

        on_both(action, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not WHOLE, reason="linear is split on a torch before 2.12")
def test_one_operation_each_way() -> None:
    x, weight, bias = inputs("xla")
    assert x is not None and weight is not None
    out = F.linear(x, weight, bias)
    assert recorded() == ["aten.linear"]
    out.backward(torch.ones_like(out))
    assert recorded() == ["aten.linear", "aten.ones_like", "aten.linear_backward"]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"])
def test_outside_autograd(mode: Any) -> None:
    with mode():
        on_both(lambda device: [F.linear(*inputs(device))])  # type: ignore[arg-type]


def test_gradients_of_gradients() -> None:
    def action(device: str) -> Any:
        made = [each for each in inputs(device) if each is not None]
        first = torch.autograd.grad(F.linear(*made).pow(3).sum(), made, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), made)

    on_both(action, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch loads its rules of forward mode so
def test_forward_mode() -> None:
    def action(device: str) -> list[Tensor]:
        made = [each.detach() for each in inputs(device) if each is not None]
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(each, torch.ones_like(each)) for each in made]
            value, tangent = forward_ad.unpack_dual(F.linear(*duals))
        assert tangent is not None
        return [value, tangent]

    on_both(action, rtol=1e-5, atol=1e-5)
    F.linear(*inputs("xla"))  # type: ignore[arg-type]
    assert (recorded() == ["aten.linear"]) is WHOLE


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # torch loads its rules of forward mode so
def test_function_transforms() -> None:
    def action(device: str) -> list[Tensor]:
        x, weight, bias = (each.detach() for each in inputs(device) if each is not None)
        return [
            torch.func.vmap(lambda row: F.linear(row, weight, bias))(x),
            torch.func.vmap(torch.func.grad(lambda row, w: F.linear(row, w, bias).square().sum(), 1), (0, None))(x, weight),
            torch.func.jvp(lambda w: F.linear(x, w, bias).square(), (weight,), (torch.ones_like(weight),))[1],
            torch.func.hessian(lambda b: F.linear(x, weight, b).pow(3).sum())(bias),
        ]

    on_both(action, rtol=1e-4, atol=1e-4)


def test_errors_are_those_of_the_cpu() -> None:
    wrong = [((2, 4), (3, 5), None), ((2, 4), (3, 4), (2,)), ((2, 4), (3, 4), (3, 2, 2))]
    for shapes in wrong:
        raised = []
        for device in ("cpu", "xla"):
            made = [None if shape is None else torch.ones(shape, device=device) for shape in shapes]
            with pytest.raises(RuntimeError) as caught:
                F.linear(*made)  # type: ignore[arg-type]
            raised.append(type(caught.value))
        assert raised[0] is raised[1]


def test_autocast_and_reduced_precision() -> None:
    x, weight, bias = inputs("xla")
    assert x is not None and weight is not None
    with torch.autocast("xla", dtype=torch.bfloat16):
        out = F.linear(x, weight, bias)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    on_both(lambda device: [F.linear(*inputs(device, dtype=torch.bfloat16))], rtol=2e-2, atol=2e-2)  # type: ignore[arg-type]
