"""Optimizers of torch whose rates, betas and states are changed between the calls of a captured step."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.optim import lr_scheduler

CALLS = 22


def small_model() -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


def train(
    capture: Capture, model: nn.Module, optimizer: torch.optim.Optimizer, between: Callable[[int], Any], calls: int = CALLS
) -> Iterator[Any]:
    """Train; `between` runs before each call with its number. Yields losses, rates and a weight, and all state at the end."""

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(calls):
        between(call)
        yield step(*batch(call))
        yield [group["lr"] for group in optimizer.param_groups]
        yield next(model.parameters())
    yield model.state_dict()
    yield optimizer.state_dict()["state"]
    yield [{key: value for key, value in group.items() if key not in ("params", "capturable")} for group in optimizer.param_groups]


def stepping(scheduler: Any) -> Callable[[int], None]:
    """Step a schedule before each call but the first."""

    def between(call: int) -> None:
        if call:
            scheduler.step()

    return between


@program
def sgd_with_momentum_under_a_step_schedule(capture: Capture) -> Iterator[Any]:
    """The rate falls each third call."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    yield from train(capture, model, optimizer, stepping(lr_scheduler.StepLR(optimizer, 3, 0.7)))


@program
def adam_under_a_lambda_schedule(capture: Capture) -> Iterator[Any]:
    """The rate rises, then falls with the square root of the call, by a lambda."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 6, math.sqrt(6 / (n + 1))))
    yield from train(capture, model, optimizer, stepping(scheduler))


@program
def adamw_under_one_cycle(capture: Capture) -> Iterator[Any]:
    """The schedule changes the rate and the first beta at each call."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    yield from train(capture, model, optimizer, stepping(lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=CALLS + 1)))
    yield optimizer.param_groups[0]["betas"]


@program
def sgd_under_one_cycle_with_a_momentum_that_goes_the_other_way(capture: Capture) -> Iterator[Any]:
    """The schedule changes the rate and the momentum at each call."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    yield from train(capture, model, optimizer, stepping(lr_scheduler.CyclicLR(optimizer, 0.01, 0.2, step_size_up=4)))


@program
def rmsprop_under_cosine_annealing(capture: Capture) -> Iterator[Any]:
    """Centered RMSprop with momentum; the rate follows a cosine."""
    model = small_model()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.02, momentum=0.5, centered=True)
    yield from train(capture, model, optimizer, stepping(lr_scheduler.CosineAnnealingLR(optimizer, CALLS, 0.001)))


@program
def adagrad_with_its_own_decay_and_an_exponential_one(capture: Capture) -> Iterator[Any]:
    """The rate is divided by the step count, and falls from outside, too."""
    model = small_model()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.3, lr_decay=0.1)
    yield from train(capture, model, optimizer, stepping(lr_scheduler.ExponentialLR(optimizer, 0.93)))


@program
def nadam_with_warm_restarts(capture: Capture) -> Iterator[Any]:
    """Its momentum is a product over all steps; the rate starts anew each fifth call."""
    model = small_model()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.05)
    yield from train(capture, model, optimizer, stepping(lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 5)))


@program
def adamax_with_a_polynomial_rate(capture: Capture) -> Iterator[Any]:
    """The rate reaches zero at call 20 and stays there."""
    model = small_model()
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.05)
    yield from train(capture, model, optimizer, stepping(lr_scheduler.PolynomialLR(optimizer, 20, 2.0)), 24)


@program
def radam_that_takes_another_branch_after_five_steps(capture: Capture) -> Iterator[Any]:
    """It corrects the variance from the sixth step on only."""
    model = small_model()
    optimizer = torch.optim.RAdam(model.parameters(), lr=0.05)
    yield from train(capture, model, optimizer, lambda call: None)


@program
def averaged_sgd_that_starts_to_average_later(capture: Capture) -> Iterator[Any]:
    """ASGD begins its average after step 6."""
    model = small_model()
    optimizer = torch.optim.ASGD(model.parameters(), lr=0.1, t0=6)
    yield from train(capture, model, optimizer, lambda call: None)


@program
def a_sequence_of_schedules(capture: Capture) -> Iterator[Any]:
    """A linear warm-up, then a cosine, then a constant rate."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    parts: list[Any] = [
        lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 5),
        lr_scheduler.CosineAnnealingLR(optimizer, 10),
        lr_scheduler.ConstantLR(optimizer, 0.5, 100),
    ]
    yield from train(capture, model, optimizer, stepping(lr_scheduler.SequentialLR(optimizer, parts, [5, 15])))


@program
def a_rate_that_the_caller_lowers_on_a_plateau(capture: Capture) -> Iterator[Any]:
    """The caller reads each loss, and the schedule lowers the rate when it got no better."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = capture(step)
    for call in range(CALLS):
        loss = step(*batch(call)).item()
        scheduler.step(loss)
        yield loss, optimizer.param_groups[0]["lr"]
    yield model.state_dict()


@program
def a_schedule_inside_the_step(capture: Capture) -> Iterator[Any]:
    """The step itself steps the schedule, as many training loops do."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.StepLR(optimizer, 4, 0.5)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
        yield scheduler.get_last_lr(), scheduler.last_epoch, optimizer.param_groups[0]["lr"]
    yield model.state_dict()


@program
def a_warm_up_by_hand_with_python_floats(capture: Capture) -> Iterator[Any]:
    """The caller writes the rate to all groups at each of the first eight calls."""
    model = small_model()
    groups: list[dict[str, Any]] = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)

    def between(call: int) -> None:
        if call < 8:
            for index, group in enumerate(optimizer.param_groups):
                group["lr"] = 0.1 / (index + 1) * (call + 1) / 8

    yield from train(capture, model, optimizer, between)


@program
def rates_that_are_numpy_floats(capture: Capture) -> Iterator[Any]:
    """The rate is a double of NumPy, from call 7 on one of 32 bits, and at call 20 a Python float."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    rates = 0.1 * np.cos(np.linspace(0, 1.5, CALLS))

    def between(call: int) -> None:
        rate: Any = rates[call] if call < 7 else np.float32(rates[call]) if call < 20 else 0.05
        optimizer.param_groups[0]["lr"] = rate

    yield from train(capture, model, optimizer, between)


@program
def an_integer_as_rate(capture: Capture) -> Iterator[Any]:
    """The rate is the integer 1, then 0.5 from call 2, 2 from call 7, 0 from call 12, and 1.0 from call 20."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    rates: dict[int, float] = {2: 0.5, 7: 2, 12: 0, 20: 1.0}

    def between(call: int) -> None:
        optimizer.param_groups[0]["lr"] = rates.get(call, optimizer.param_groups[0]["lr"])

    yield from train(capture, model, optimizer, between)


@program
def a_rate_in_a_cpu_tensor(capture: Capture) -> Iterator[Any]:
    """The rate is a tensor on the CPU; a schedule multiplies it, and the caller fills it at calls 7 and 20."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1), foreach=False)
    scheduler = lr_scheduler.MultiStepLR(optimizer, [3, 14], 0.5)

    def between(call: int) -> None:
        if call:
            scheduler.step()
        if call in (7, 20):
            optimizer.param_groups[0]["lr"].fill_(0.2)

    yield from train(capture, model, optimizer, between)


@program
def a_group_that_is_added_later(capture: Capture) -> Iterator[Any]:
    """At call 7 the first layer joins with a rate of its own, at call 14 both rates change."""
    model = small_model()
    optimizer = torch.optim.Adam(model[2].parameters(), lr=0.05)

    def between(call: int) -> None:
        if call == 7:
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
        if call == 14:
            for group in optimizer.param_groups:
                group["lr"] *= 0.3

    yield from train(capture, model, optimizer, between)


@program
def the_rate_as_a_result(capture: Capture) -> Iterator[Any]:
    """The step returns the loss and the rate of its optimizer, which falls at each call."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)

    @capture
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach(), optimizer.param_groups[0]["lr"]

    for call in range(CALLS):
        yield step(*batch(call))
        scheduler.step()
    yield model.state_dict()


@program
def the_rate_as_a_weight_of_the_loss(capture: Capture) -> Iterator[Any]:
    """The loss is multiplied by what the schedule says, which changes each second call."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.2)
    scheduler = lr_scheduler.StepLR(optimizer, 2, 0.8)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = scheduler.get_last_lr()[0] * F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
        scheduler.step()
    yield model.state_dict()


@program
def back_to_a_checkpoint(capture: Capture) -> Iterator[Any]:
    """Model, optimizer and schedule are saved before call 5 and loaded before calls 12 and 20."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, amsgrad=True)
    scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
    parts: list[Any] = [model, optimizer, scheduler]
    saved: list[Any] = []

    def between(call: int) -> None:
        if call:
            scheduler.step()
        if call == 5:
            saved.extend(copy.deepcopy(part.state_dict()) for part in parts)
        if call in (12, 20):
            for part, state in zip(parts, saved, strict=True):
                part.load_state_dict(copy.deepcopy(state))

    yield from train(capture, model, optimizer, between)


@program
def hyperparameters_that_are_set_by_hand(capture: Capture) -> Iterator[Any]:
    """Between calls 2 and 3, at calls 7, 12 and 20: weight decay, betas, epsilon, and all of them."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    changes: dict[int, dict[str, Any]] = {
        2: {"weight_decay": 0.5},
        7: {"betas": (0.5, 0.9)},
        12: {"eps": 0.01},
        20: {"weight_decay": 0, "betas": (0.9, 0.99), "eps": 1e-6, "maximize": True},
    }
    yield from train(capture, model, optimizer, lambda call: optimizer.param_groups[0].update(changes.get(call, {})))


@program
def momentum_that_begins_later(capture: Capture) -> Iterator[Any]:
    """SGD without momentum gets one at call 7, Nesterov's at call 13, and loses it at call 18."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    changes: dict[int, dict[str, Any]] = {7: {"momentum": 0.9}, 13: {"nesterov": True}, 18: {"momentum": 0, "nesterov": False}}
    yield from train(capture, model, optimizer, lambda call: optimizer.param_groups[0].update(changes.get(call, {})))


@program
def state_that_is_forgotten(capture: Capture) -> Iterator[Any]:
    """The caller empties the optimizer's state at call 9 and puts a new dictionary in its place at call 17."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def between(call: int) -> None:
        if call == 9:
            optimizer.state.clear()
        if call == 17:
            optimizer.state = defaultdict(dict)

    yield from train(capture, model, optimizer, between)
