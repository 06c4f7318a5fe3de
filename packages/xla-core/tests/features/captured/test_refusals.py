"""What cannot be captured is said, with the line and what to do; with `fallback`, it is recorded on."""

from __future__ import annotations

import array
import copy
import queue
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured_programs import Unseen
from torch import Tensor, nn

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.base.errors import CapturedStepChanged, CaptureError

KEPT: queue.SimpleQueue[Tensor] = queue.SimpleQueue()
"""Where captured functions do not look."""


def reads(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() > 0 else x


def uploads(x: Tensor) -> Tensor:
    return x + torch.ones(20_000).to("xla").sum()


def syncs(x: Tensor) -> Tensor:
    y = x + 1
    torch_xla.sync()
    return y * 2


def keeps(x: Tensor) -> Tensor:
    y = x * 3
    KEPT.put(y)
    return y + 1


def shape_of_data(x: Tensor) -> Tensor:
    return x[x > 0].sum()


def closure(x: Tensor) -> Tensor:
    y = x + 1
    xm.add_step_closure(lambda value: None, args=(y,))
    return y


def seeds(x: Tensor) -> Tensor:
    torch.manual_seed(4)
    return x + torch.rand(3, device="xla")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (reads, r"it reads a value \(at .*test_refusals.py:\d+\): move"),
        (uploads, r"it uploads host data \(at .*test_refusals.py:\d+\): move"),
        (syncs, r"it runs 2 programs: leave out torch_xla.sync"),
        (keeps, r"is kept after the call, but not returned"),
        (shape_of_data, r"it reads a value"),
        (seeds, r"it sets the random state"),
    ],
)
def test_says_why(function: Callable[[Tensor], Tensor], said: str) -> None:
    step = torch_xla.compile(function, capture=True, verify_every=None)
    x = torch.tensor([1.0, -2.0, 3.0]).to("xla")
    with pytest.raises(CaptureError, match=said):
        for _ in range(6):
            step(x)


@pytest.mark.parametrize("function", [reads, uploads, syncs, shape_of_data])
def test_falls_back(function: Callable[[Tensor], Tensor]) -> None:
    step = torch_xla.compile(function, capture=True, fallback=True, verify_every=None)
    x = torch.tensor([1.0, -2.0, 3.0])
    with pytest.warns(RuntimeWarning, match="cannot be captured: .* It is recorded at each call") as said:
        for _ in range(6):
            assert torch.equal(step(x.to("xla")).detach().cpu(), step.__wrapped__(x.to("xla")).detach().cpu())
    assert len([warning for warning in said if "cannot be captured" in str(warning.message)]) == 1


def test_a_result_with_a_graph_that_is_not_gone_is_recorded_at_each_call() -> None:
    weight = torch.ones(3, device="xla", requires_grad=True)
    step = torch_xla.compile(lambda x: x * weight, capture=True)
    with pytest.warns(RuntimeWarning, match="returns a tensor with the graph of its gradient.* Capture the whole step") as said:
        for _ in range(6):
            step(torch.ones(3, device="xla")).sum().backward()
    assert len(said) == 1
    assert weight.grad is not None
    assert weight.grad.tolist() == [6.0] * 3


def test_data_on_the_host() -> None:
    with pytest.raises(CaptureError, match=r"an argument is a Tensor of shape \(3,\) on the host: move it"):
        torch_xla.compile(lambda x: x.to("xla") + 1, capture=True, verify_every=None)(torch.ones(3))


def test_numbers_that_differ_name_the_line() -> None:
    numbers = Unseen()

    def scaled(x: Tensor) -> Tensor:
        return x * (0.5 + next(numbers))

    step = torch_xla.compile(scaled, capture=True, verify_every=None)
    x = torch.ones(3).to("xla")
    with pytest.raises(CaptureError, match=r"aten.mul.Tensor at .*test_refusals.py:\d+ was 2.5 in call 3 and 3.5 in call 4: give"):
        for _ in range(6):
            step(x)


def test_a_scheduler_inside() -> None:
    model = nn.Linear(3, 3).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        schedule.step()

    captured = torch_xla.compile(step, capture=True)
    for number in range(1, 31):
        captured(torch.ones(2, 3).to("xla"))
        assert schedule.get_last_lr() == [optimizer.param_groups[0]["lr"]] == [pytest.approx(0.1 * 0.9**number)]
        assert schedule.last_epoch == number


def test_numbers_that_cannot_be_followed() -> None:
    """A user's optimizer that makes another number of its learning rate in C: a schedule would be ignored."""

    class Rooted(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-(float.__pos__(group["lr"]) ** 0.5))

    model = nn.Linear(3, 3).to("xla")
    optimizer = Rooted(model.parameters(), 0.1)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    captured = torch_xla.compile(step, capture=True, verify_every=None)
    with pytest.raises(CaptureError, match=r"the number of aten.add_.Tensor at .*test_refusals.py:\d+ was -0.316"):
        for _ in range(20):
            captured(torch.ones(2, 3).to("xla"))


def test_verification_finds_what_guards_cannot_see() -> None:
    state = {"factor": 2.0}
    hidden = array.array("d", [2.0])

    def scaled(x: Tensor) -> Tensor:
        return x * hidden[0] + state["factor"]

    captured = torch_xla.compile(scaled, capture=True, verify_every=5)
    x = torch.ones(3).to("xla")
    for _ in range(4):
        captured(x)
    hidden[0] = 3.0
    said = r"call 7 does something else .* aten.mul.Tensor at .* was 2.0 in call 2 and 3.0 in call 7.* of calls 3 to 6 may be wrong"
    with pytest.raises(CapturedStepChanged, match=said):
        for _ in range(4):
            captured(x)


def test_numbers_in_closures_are_seen() -> None:
    settings = {"factor": 2.0}
    captured = torch_xla.compile(lambda x: x * settings["factor"], capture=True, verify_every=None)
    x = torch.ones(3).to("xla")
    for factor in (2.0, 3.0, 4.0):
        settings["factor"] = factor
        for _ in range(5):
            assert captured(x).tolist() == [factor] * 3


def test_an_error_inside_leaves_all_as_it_was() -> None:
    model = nn.Linear(3, 3).to("xla")
    plain = copy.deepcopy(model).cpu()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    fail = [False]

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        if fail[0]:
            raise KeyError("wanted")

    captured = torch_xla.compile(step, capture=True, verify_every=None)
    x = torch.ones(2, 3).to("xla")
    captured(x)
    fail[0] = True
    with pytest.raises(KeyError, match="wanted"):
        captured(x)
    assert type(optimizer.param_groups[0]["lr"]) is float
    assert all(type(state["step"]) is Tensor for state in optimizer.state.values())
    fail[0] = False
    for _ in range(6):
        captured(x)
    other = torch.optim.Adam(plain.parameters(), lr=0.1)
    for _ in range(8):
        other.zero_grad()
        plain(torch.ones(2, 3)).sum().backward()
        other.step()
    torch.testing.assert_close(model.weight.cpu(), plain.weight, rtol=1e-4, atol=1e-5)


def test_without_capture_there_is_nothing_to_fall_back_from() -> None:
    with pytest.raises(ValueError, match="give capture=True, too"):
        torch_xla.compile(reads, fallback=True)
    with pytest.raises(ValueError, match="verify_every is 0"):
        torch_xla.compile(reads, capture=True, verify_every=0)


def test_methods_and_modules() -> None:
    class Scaling:
        def __init__(self, factor: float) -> None:
            self.factor = torch.full((), factor).to("xla")

        @torch_xla.compile(capture=True, verify_every=None)
        def scale(self, x: Tensor) -> Tensor:
            """Doc."""
            return x * self.factor

    first, second = Scaling(2.0), Scaling(5.0)
    assert Scaling.scale.__doc__ == "Doc."
    x = torch.ones(2).to("xla")
    for _ in range(5):
        assert first.scale(x).tolist() == [2.0, 2.0]
        assert second.scale(x).tolist() == [5.0, 5.0]
    model = nn.Linear(2, 2).to("xla")
    called, forward = torch_xla.compile(model, capture=True, verify_every=None), torch_xla.compile(model.forward, capture=True)
    with torch.no_grad():
        for _ in range(5):
            assert torch.equal(called(x).cpu(), forward(x).cpu())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert called(x.detach()).requires_grad is False if not torch.is_grad_enabled() else True
