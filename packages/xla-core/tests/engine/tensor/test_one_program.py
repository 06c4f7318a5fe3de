"""A training loop is one program from its first step on, and decoding from its first token: of shapes that no other test uses."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn, optim

import torch_xla
from xla_core.abi.metrics import counter

STEPS = 5
OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": optim.SGD,
    "SGD momentum": partial(optim.SGD, momentum=0.9, weight_decay=0.01),
    "SGD nesterov": partial(optim.SGD, momentum=0.9, nesterov=True),
    "SGD dampening": partial(optim.SGD, momentum=0.9, dampening=0.25, maximize=True),
    "Adam": optim.Adam,
    "AdamW": optim.AdamW,
    "RMSprop": optim.RMSprop,
    "RMSprop momentum": partial(optim.RMSprop, momentum=0.9, centered=True),
    "Adagrad": optim.Adagrad,
}
WIDTHS = {name: 31 + 2 * number for number, name in enumerate(OPTIMIZERS)}


@pytest.fixture(autouse=True)
def nothing_pending() -> Iterator[None]:
    torch_xla.sync()
    # What a step drops is dropped at once, and not when the collector happens to come by.
    gc.disable()
    yield
    gc.enable()


def compiles() -> int:
    return counter("UncachedCompile")


def model_of(width: int) -> nn.Module:
    torch.manual_seed(width)
    return nn.Sequential(nn.Conv2d(1, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(4 * width, 3))


def train(
    device: str, make: Callable[..., optim.Optimizer], width: int, foreach: bool, to_none: bool, zero_first: bool = True
) -> tuple[list[torch.Tensor], int]:
    """Weights, state and gradients after some steps, and the programs compiled."""
    model = model_of(width).double().to(device)  # so that gradients are equal which Adam would tell apart by their rounding
    optimizer = make(model.parameters(), lr=0.05, foreach=foreach)
    images = torch.linspace(-1, 1, 80, dtype=torch.float64).reshape(5, 1, 4, 4).to(device)
    labels = torch.tensor([0, 1, 2, 1, 0]).to(device)
    torch_xla.sync()
    before = compiles()
    for _ in range(STEPS):
        if zero_first:
            optimizer.zero_grad(set_to_none=to_none)
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if not zero_first:
            optimizer.zero_grad(set_to_none=to_none)
        torch_xla.sync()
    compiled = compiles() - before
    state = [value for slots in optimizer.state.values() for value in slots.values() if isinstance(value, torch.Tensor)]
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [tensor.detach().cpu() for tensor in (*model.state_dict().values(), *state, *grads)], compiled


@pytest.mark.parametrize("to_none", [True, False], ids=["none", "zeros"])
@pytest.mark.parametrize("foreach", [True, False], ids=["lists", "one by one"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_loop_compiles_one_program(name: str, foreach: bool, to_none: bool) -> None:
    expected, _ = train("cpu", OPTIMIZERS[name], WIDTHS[name], foreach, to_none)
    found, compiled = train("xla", OPTIMIZERS[name], WIDTHS[name], foreach, to_none)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert compiled <= 1  # 0: that with and without zeros is the same program


def test_gradients_set_to_zero_behind_the_step_leave_it_one_program() -> None:
    expected, _ = train("cpu", optim.SGD, 57, True, False, zero_first=False)
    found, compiled = train("xla", optim.SGD, 57, True, False, zero_first=False)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert compiled == 1 and not any(bool(tensor.any()) for tensor in found[-5:]), "the gradients are zeros"


def test_a_number_of_an_optimizer_is_an_input_from_its_first_step_on() -> None:
    class Decaying(optim.Optimizer):
        """Its rate follows from a count, and is a number of operations that write nothing."""

        def __init__(self, params: Any) -> None:
            super().__init__(params, {"count": 0})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["count"] += 1
                for parameter in group["params"]:
                    parameter.copy_(parameter - parameter.grad * (0.5 ** group["count"]))

    weight = torch.ones(61, device="xla", requires_grad=True)
    optimizer = Decaying([weight])
    torch_xla.sync()
    before = compiles()
    for _ in range(4):
        weight.grad = None
        (weight * 2).sum().backward()
        optimizer.step()
        torch_xla.sync()
    assert weight.tolist() == [1 - 2 * (0.5 + 0.25 + 0.125 + 0.0625)] * 61
    assert compiles() - before == 1


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_a_momentum_begins_as_the_gradient_to_the_bit(dampening: float) -> None:
    gradient = torch.tensor([0.0, -0.0, 1e-40, -3.0, float("inf"), float("-inf"), 3.1, 0.1])
    weight = nn.Parameter(torch.zeros(8, device="xla"))
    optimizer = optim.SGD([weight], lr=0.1, momentum=0.9, dampening=dampening)
    weight.grad = gradient.to("xla")
    optimizer.step()
    torch_xla.sync()
    momentum = optimizer.state[weight]["momentum_buffer"].cpu()
    normal = gradient.abs() != 1e-40  # XLA flushes what is smaller than normal numbers
    assert torch.equal(momentum.view(torch.int32)[normal], gradient.view(torch.int32)[normal])


def test_a_parameter_that_joins_later_begins_with_its_gradient() -> None:
    def run(device: str) -> list[torch.Tensor]:
        first, second = (nn.Parameter(torch.full((67,), value).to(device)) for value in (1.0, 2.0))
        optimizer = optim.SGD([first, second], lr=0.1, momentum=0.9, dampening=0.25)
        for turn in range(3):
            first.grad = torch.full((67,), 0.5).to(device)
            second.grad = torch.full((67,), 0.25).to(device) if turn else None
            optimizer.step()
            torch_xla.sync()
        return [first.detach().cpu(), second.detach().cpu(), optimizer.state[second]["momentum_buffer"].cpu()]

    for mine, theirs in zip(run("xla"), run("cpu"), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_what_differentiates_through_the_first_step_goes_torchs_way() -> None:
    def run(device: str) -> torch.Tensor:
        gradient = torch.full((3,), 2.0).to(device).requires_grad_()
        momenta: list[torch.Tensor | None] = [None]
        weight = torch.ones(3, device=device)
        from torch.optim.sgd import sgd

        options = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": True, "maximize": False}
        sgd([weight], [gradient], momenta, foreach=False, **options)  # type: ignore[arg-type]
        weight.sum().backward()  # type: ignore[no-untyped-call]
        assert gradient.grad is not None
        return gradient.grad.cpu()

    assert torch.equal(run("xla"), run("cpu"))


def test_zeros_are_seen_by_all_who_share_the_data() -> None:
    x = torch.arange(71.0).to("xla")
    alias, view = x.detach(), x[3:5]
    version = x._version
    x.zero_()
    torch._foreach_zero_([torch.ones(2, device="xla"), x])
    assert x._version == version + 2
    assert alias.tolist() == [0.0] * 71 and view.tolist() == [0.0, 0.0]
    view.add_(1)
    view.zero_()
    x[0] = 5
    torch_xla.sync()
    assert alias.tolist() == [5.0] + [0.0] * 70


def test_a_sum_that_is_set_to_zero_between_steps_is_the_same_program() -> None:
    total, x = torch.zeros(73, device="xla"), torch.ones(73, device="xla")
    torch_xla.sync()
    seen = []
    for turn in range(6):
        if turn % 2 == 0:
            total.zero_()
            torch_xla.sync()
        before = compiles()
        total += x * 3
        torch_xla.sync()
        seen.append(compiles() - before)
    assert total.tolist() == [6.0] * 73
    assert sum(seen) == 1, seen


def test_a_gradient_that_is_used_before_it_is_added_to() -> None:
    weight = torch.ones(79, device="xla", requires_grad=True)
    weight.grad = torch.full((79,), 7.0, device="xla")
    held = weight.grad
    held.zero_()
    after = held + 1
    (weight * 3).sum().backward()
    (weight * 4).sum().backward()
    assert after.tolist() == [1.0] * 79
    assert held.tolist() == [7.0] * 79 and weight.grad is held


def test_gradients_of_other_dtypes_and_shapes_are_added_to_zeros() -> None:
    class Wide(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            sums = torch.empty(83, device="xla").zero_()
            sums.add_(torch.ones((), device="xla"))  # broadcast
            sums.add_(torch.ones(83, device="xla"), alpha=2)
            return grad * sums

    weight = torch.ones(83, device="xla", requires_grad=True)
    Wide.apply(weight).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [3.0] * 83


@pytest.mark.parametrize("read", [False, True])
def test_decoding_with_a_fixed_window_is_one_program(read: bool) -> None:
    def run(device: str) -> list[list[int]]:
        torch.manual_seed(5)
        tokens = 89 + read
        embed, out = nn.Embedding(17, 8).to(device), nn.Linear(8 * tokens, 17).to(device)
        prompt = torch.arange(tokens).remainder(17).reshape(1, tokens).to(device)
        torch_xla.sync()
        window, made = prompt, []
        with torch.no_grad():
            for _ in range(5):
                token = out(embed(window).flatten(1)).argmax(-1, keepdim=True)
                window = torch.cat([window[:, 1:], token], 1)
                torch_xla.sync()
                if read:
                    token.item()
                made.append(token)
        return [token.tolist() for token in (*made, prompt[:, :2])]

    expected = run("cpu")
    before = compiles()
    assert run("xla") == expected
    assert compiles() - before == 1


def test_what_torch_refuses_of_a_large_call_keeps_nothing_alive() -> None:
    """The CPU is asked about convolution_backward in few sizes, and refuses those: its error must not hold the tensors of the call."""
    model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3), nn.Flatten(), nn.Linear(8 * 441, 3)).to("xla")
    images = torch.ones(4, 1, 25, 25).to("xla")
    torch_xla.sync()
    before = compiles()
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = None
        model(images).square().mean().backward()
        torch_xla.sync()
    assert compiles() - before == 1
