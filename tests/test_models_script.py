"""`hatch run models` compares gradients with the same sides of ReLUs on both devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import torch_xla  # noqa: F401  # the device

ROOT = Path(__file__).resolve().parents[1]

CORNERS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "relu": (torch.relu, 0.0),
    "method": (Tensor.relu, 0.0),
    "functional": (functional.relu, 0.0),
    "module": (torch.nn.ReLU(inplace=True), 0.0),
    "relu6": (functional.relu6, 6.0),
    "module of relu6": (torch.nn.ReLU6(), 6.0),
    "hardtanh": (lambda x: functional.hardtanh(x, -2.0, max_val=3.0), 3.0),
}


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "models"))
    import sides

    return sides.Sides()


def outcome(function: Callable[[Tensor], Tensor], values: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """The result of a function and its derivative."""
    x = values.clone().to(device).requires_grad_()
    y = function(x * 1.0)
    y.sum().backward()
    assert x.grad is not None
    return y.detach().cpu(), x.grad.cpu()


@pytest.mark.parametrize("name", CORNERS)
def test_the_second_run_takes_the_sides_of_the_first(name: str, sides: Any) -> None:
    function, corner = CORNERS[name]
    values = torch.tensor([corner - 1e-6, corner + 1e-6, -9.0, 0.5, 9.0])
    mirrored = torch.tensor([corner + 1e-6, corner - 1e-6, -9.0, 0.5, 9.0])
    expected, slope = outcome(function, values, "cpu")
    assert not torch.equal(outcome(function, mirrored, "cpu")[1], slope), "the corner is between the two"
    for _ in range(2):  # as for each step of a training
        with sides:
            first = outcome(function, values, "cpu")
        with sides:
            second = outcome(function, mirrored, "xla")
        torch.testing.assert_close(first, (expected, slope), rtol=0, atol=0)
        torch.testing.assert_close(second, (expected, slope), rtol=0, atol=3e-6)
