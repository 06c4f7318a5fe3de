"""Arguments of several kinds in turn: each has a program of its own, and all of them train one state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_xla
from torch_xla.amp import syncfree
from xla_core.base import metrics
from xla_core.base.metrics import Cause, CompileEvent, SyncEvent

Make = Callable[[Any], torch.optim.Optimizer]

# To the bit: what these compute of rates and counts is followed.
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, momentum, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, weight_decay=0.01),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    "Adam, capturable": lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True),
    "Adam, two groups": lambda p: torch.optim.Adam([{"params": each, "lr": 0.01 * (n + 1)} for n, each in enumerate(p)]),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5, centered=True),
    "syncfree SGD": lambda p: syncfree.SGD(p, lr=0.1, momentum=0.9),
}
# These are told to count on the device, which rounds in another order.
OTHER_WAYS: dict[str, Make] = {
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "Adam, a rate that is a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2)),
    "syncfree Adam": lambda p: syncfree.Adam(p, lr=1e-2),
    "syncfree AdamW": lambda p: syncfree.AdamW(p, lr=1e-2),
}


@dataclass
class Trained:
    """What a training came to. captured: for each call, whether it was; compiled: programs."""

    losses: list[float] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    captured: list[bool] = field(default_factory=list)
    compiled: int = 0


def train(make: Make, rows: list[int], capture: bool, set_to_none: bool = True, schedule: bool = False) -> Trained:
    """Train on batches of so many rows, one after the other."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(5, 3), nn.Tanh()).to("xla")
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99) if schedule else None
    outcome = Trained()

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    called = torch_xla.compile(step, capture=capture, verify_every=None)
    data = {count: (torch.randn(count, 5).to("xla"), torch.randint(3, (count,)).to("xla")) for count in sorted(set(rows))}
    losses = []
    compiled: list[CompileEvent] = []
    steps: list[SyncEvent] = []
    ends = [metrics.subscribe(compiled.append, CompileEvent), metrics.subscribe(steps.append, SyncEvent)]
    for count in rows:
        steps.clear()
        losses.append(called(*data[count]))
        outcome.captured.append(any(event.cause is Cause.CAPTURED for event in steps))
        if scheduler is not None:
            scheduler.step()
    for end in ends:
        end()
    outcome.losses, outcome.compiled = [loss.item() for loss in losses], len(compiled)
    outcome.weights = [parameter.detach().cpu() for parameter in model.parameters()]
    return outcome


def turns(kinds: int, calls: int, at_random: bool) -> list[int]:
    """The rows of each batch: in turn, or in any order."""
    order = random.Random(kinds)
    return [2 + (order.randrange(kinds) if at_random else number % kinds) for number in range(calls)]


def assert_same(found: Trained, expected: Trained, exactly: bool) -> None:
    """Equal trainings."""
    tolerance = 0.0 if exactly else 1e-3
    torch.testing.assert_close(torch.tensor(found.losses), torch.tensor(expected.losses), rtol=tolerance, atol=tolerance / 100)
    torch.testing.assert_close(found.weights, expected.weights, rtol=tolerance, atol=tolerance / 100)


ALL = {**OPTIMIZERS, **OTHER_WAYS}


def check_kinds_in_turn(name: str, kinds: int, calls: int, at_random: bool, set_to_none: bool = True) -> None:
    """A training with several kinds of batches is the one that is not captured, and soon all of it is captured, with no more programs."""
    make, exactly = ALL[name], name in OPTIMIZERS
    # A rate that is a tensor of the CPU, and changes, is refused with one kind, too.
    schedule = "a rate that is a tensor" not in name
    rows = turns(kinds, calls, at_random)
    expected = train(make, rows, False, set_to_none, schedule)
    found = train(make, rows, True, set_to_none, schedule)
    assert_same(found, expected, exactly)
    # Two recorded calls of a kind, three of the one that has made the optimizer's state; more where another way had to be found.
    last = len(found.captured) - found.captured[::-1].index(False)
    recorded = [rows[number] for number in range(last) if not found.captured[number]]
    assert all(recorded.count(each) <= (3 if exactly else 12) for each in set(rows))
    assert all(found.captured[last:])
    assert calls - last >= kinds
    if exactly:
        assert found.compiled <= kinds + 1


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "RAdam"])
def test_kinds_in_turn(name: str) -> None:
    check_kinds_in_turn(name, 2, 30, at_random=False)


@pytest.mark.long
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("kinds", "at_random", "set_to_none"), [(2, False, True), (3, True, False)])
def test_kinds_in_turn_by_every_optimizer(name: str, kinds: int, at_random: bool, set_to_none: bool) -> None:
    check_kinds_in_turn(name, kinds, 200, at_random, set_to_none)


@pytest.mark.long
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD, momentum", "NAdam", "syncfree Adam"])
@pytest.mark.parametrize(("kinds", "at_random"), [(12, True), (16, False)])
def test_many_kinds(name: str, kinds: int, at_random: bool) -> None:
    check_kinds_in_turn(name, kinds, 400, at_random)


def averages(rows: list[int], capture: bool) -> tuple[list[bool], list[float]]:
    """A step of momentum over vectors of so many numbers: whether each call was captured, and what came of it."""
    weight = nn.Parameter(torch.ones(1).to("xla"))
    optimizer = torch.optim.Adam([weight], lr=0.1)

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        (weight * x).square().sum().backward()
        optimizer.step()

    called, captured, weights = torch_xla.compile(step, capture=capture, verify_every=None), [], []
    steps: list[SyncEvent] = []
    end = metrics.subscribe(steps.append, SyncEvent)
    for count in rows:
        steps.clear()
        called(torch.ones(count).to("xla"))
        captured.append(any(event.cause is Cause.CAPTURED for event in steps))
        weights.append(weight.item())
    end()
    return captured, weights


def test_sixteen_kinds_have_a_program_each_and_the_seventeenth_takes_that_of_the_least_recently_used() -> None:
    rows = [*list(range(2, 18)) * 4, 18, 18, 18, 3, 17, 2, 2, 2, 18]
    captured, weights = averages(rows, capture=True)
    assert weights == averages(rows, capture=False)[1]
    assert all(captured[3 * 16 : 4 * 16])
    # 18 is recorded twice; of the others, only 2 has lost its program, and takes that of 4 when it comes again.
    assert captured[4 * 16 :] == [False, False, True, True, True, False, False, True, True]


def test_more_kinds_than_are_kept_train_on() -> None:
    rows = turns(17, 17 * 5, at_random=False)
    with pytest.warns(RuntimeWarning, match="was recorded at each of .* calls, because shapes"):
        captured = averages(rows, capture=True)[1]
    assert captured == averages(rows, capture=False)[1]


def test_kinds_that_train_other_parameters() -> None:
    """Step counts go apart, and a program for some of them leaves those of the others."""

    def run(capture: bool) -> list[Tensor]:
        torch.manual_seed(1)
        first, second = nn.Linear(4, 4).to("xla"), nn.Linear(4, 4).to("xla")
        optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01)

        def step(x: Tensor, both: bool) -> None:
            optimizer.zero_grad()
            (second(first(x)) if both else first(x)).square().mean().backward()
            optimizer.step()

        called = torch_xla.compile(step, capture=capture, verify_every=None)
        x = torch.randn(3, 4).to("xla")
        for number in range(30):
            called(x, number % 2 == 0)
        counts = [state["step"] for state in optimizer.state.values()]
        return [*[parameter.detach().cpu() for module in (first, second) for parameter in module.parameters()], *counts]

    expected = run(capture=False)
    assert len({float(count) for count in expected[-4:]}) == 2
    torch.testing.assert_close(run(capture=True), expected, rtol=0, atol=0)


def test_a_count_that_is_set_from_outside_is_read() -> None:
    """In place, and by the memory that it shares with NumPy."""

    def run(capture: bool) -> list[float]:
        weight = nn.Parameter(torch.ones(3).to("xla"))
        optimizer = torch.optim.Adam([weight], lr=0.1)

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            (weight * x).square().sum().backward()
            optimizer.step()

        called = torch_xla.compile(step, capture=capture, verify_every=None)
        for number in range(16):
            if number == 6:
                optimizer.state[weight]["step"].fill_(1.0)
            if number == 11:
                optimizer.state[weight]["step"].numpy()[...] = 2.0
            called(torch.ones(3).to("xla"))
        return [*weight.tolist(), optimizer.state[weight]["step"].item()]

    assert run(capture=True) == run(capture=False)


def test_a_rare_kind_whose_state_changes_between_its_calls_ends_no_training() -> None:
    """A last batch, once in each epoch, and something that is another one in each epoch."""
    model = nn.Linear(3, 3).to("xla")
    called = torch_xla.compile(lambda x: model(x).detach(), capture=True, verify_every=None)
    common, rare = torch.randn(4, 3), torch.randn(2, 3)
    for _ in range(20):
        model.epoch = object()
        for batch in (*[common] * 4, rare):
            torch.testing.assert_close(called(batch.to("xla")).cpu(), batch @ model.weight.detach().cpu().T + model.bias.detach().cpu())
