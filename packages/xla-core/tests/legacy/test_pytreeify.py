"""Autograd functions over nested arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_xla.experimental.pytreeify import pytreeify


@pytreeify
class Scaled(torch.autograd.Function):
    """Each value of a dict times a factor; the gradient says which leaves need one."""

    @staticmethod
    def forward(ctx: Any, values: dict[str, torch.Tensor], factors: tuple[torch.Tensor, float]) -> Any:
        ctx.save_for_backward(factors[0])
        ctx.number = factors[1]
        ctx.wanted = ctx.needs_input_grad
        return {name: value * factors[0] * factors[1] for name, value in values.items()}

    @staticmethod
    def backward(ctx: Any, grads: dict[str, torch.Tensor]) -> Any:  # type: ignore[override]
        assert ctx.wanted[:3] == (True, True, False)
        (factor,) = ctx.saved_tensors
        return {name: grad * factor * ctx.number for name, grad in grads.items()}, None


@pytest.mark.parametrize("device", ["cpu", "xla"])
def test_nested_values_and_gradients(device: str) -> None:
    values = {"a": torch.ones(2, device=device, requires_grad=True), "b": torch.ones(3, device=device, requires_grad=True)}
    found = Scaled.apply(values, (torch.tensor(2.0, device=device), 3.0))
    assert list(found) == ["a", "b"] and found["b"].tolist() == [6.0] * 3
    (found["a"].sum() + found["b"].sum() * 2).backward()
    assert values["a"].grad is not None and values["a"].grad.tolist() == [6.0, 6.0]
    assert values["b"].grad is not None and values["b"].grad.tolist() == [12.0] * 3
    assert issubclass(Scaled, torch.autograd.Function) and Scaled.__name__ == "Scaled"


def test_tuples_and_setup_context() -> None:
    @pytreeify
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(pair: tuple[torch.Tensor, torch.Tensor]) -> Any:
            return pair[0] + pair[1], [pair[0] * 1.0]

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.count = len(inputs[0])

        @staticmethod
        def backward(ctx: Any, total: torch.Tensor, rest: list[torch.Tensor]) -> Any:  # type: ignore[override]
            assert ctx.count == 2
            return (total + rest[0], total)

    class Wrong(torch.autograd.Function):
        forward = staticmethod(lambda ctx, pair: pair[0] * 1.0)
        backward = staticmethod(lambda ctx, grad: ([grad],))

    x, y = (torch.ones(2, device="xla", requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="2 gradients for 1 arguments"):
        total, (first,) = Both.apply((x, y))
        (total.sum() + first.sum()).backward()
    with pytest.raises(RuntimeError, match="1 leaves, the argument 2"):
        pytreeify(Wrong).apply((x, y)).sum().backward()
    with pytest.raises(TypeError, match="pytreeify decorates"):
        pytreeify(int)
