"""What users do to optimizers between calls: moments set back, options switched, groups changed, state loaded, schedules joined."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.optim import lr_scheduler

CALLS = 20


def small_model(seed: int = 7) -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to("xla")


def batch(call: int, rows: int = 4) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 3, generator=generator).to("xla"), torch.randint(2, (rows,), generator=generator).to("xla")


def trained(
    capture: Capture,
    make: Callable[[Any], torch.optim.Optimizer],
    before: Callable[[int, nn.Module, torch.optim.Optimizer], None],
    calls: int = CALLS,
) -> Iterator[Any]:
    """Train a small model with a captured step; `before` each call the caller does something to its optimizer."""
    model = small_model()
    optimizer = make(model.parameters())

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(calls):
        before(call, model, optimizer)
        yield step(*batch(call))
    yield model.state_dict(), optimizer.state_dict()["state"]


@program
def moments_that_are_replaced_by_zeros(capture: Capture) -> Iterator[Any]:
    """The caller puts new tensors of zeros in the place of Adam's moments."""

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if call in (6, 13):
            for state in optimizer.state.values():
                state["exp_avg"] = torch.zeros_like(state["exp_avg"])
                state["exp_avg_sq"] = torch.full_like(state["exp_avg_sq"], 0.01)

    yield from trained(capture, lambda p: torch.optim.Adam(p, lr=0.05), before)


@program
def a_momentum_that_is_none_again(capture: Capture) -> Iterator[Any]:
    """The caller sets the buffer of SGD's momentum to None, or deletes it."""

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            if call == 7:
                state["momentum_buffer"] = None
            if call == 14:
                state.clear()

    yield from trained(capture, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), before)


@program
def counts_that_are_set_back(capture: Capture) -> Iterator[Any]:
    """The caller fills the step counts of Adam with zero, or replaces them by new tensors."""

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for state in optimizer.state.values():
            if call == 6:
                state["step"].zero_()
            if call == 13:
                state["step"] = torch.tensor(2.0)

    yield from trained(capture, lambda p: torch.optim.Adam(p, lr=0.05), before)


@program
def options_that_are_switched(capture: Capture) -> Iterator[Any]:
    """The caller turns Nesterov's momentum and maximizing on and off, and changes the decay of weights."""

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        group = optimizer.param_groups[0]
        group["nesterov"] = 5 <= call < 10
        group["maximize"] = call == 12
        group["weight_decay"] = 0.1 * (call // 7)

    yield from trained(capture, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), before)


@program
def amsgrad_that_comes_later(capture: Capture) -> Iterator[Any]:
    """From call 8 on Adam keeps the maxima of its second moments, which the caller makes; other betas from call 14 on."""

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        group = optimizer.param_groups[0]
        if call == 8:
            group["amsgrad"] = True
            for state in optimizer.state.values():
                state["max_exp_avg_sq"] = state["exp_avg_sq"].clone()
        if call == 14:
            group["betas"] = (0.5, 0.9)

    yield from trained(capture, lambda p: torch.optim.Adam(p, lr=0.05), before)


@program
def parameters_that_leave_a_group(capture: Capture) -> Iterator[Any]:
    """The caller takes a parameter out of its group, and puts it back later."""
    taken: list[Any] = []

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        parameters = optimizer.param_groups[0]["params"]
        if call == 6:
            taken.append(parameters.pop(0))
        if call == 13:
            parameters.insert(0, taken.pop())

    yield from trained(capture, lambda p: torch.optim.Adam(list(p), lr=0.05), before)


@program
def groups_that_change_places(capture: Capture) -> Iterator[Any]:
    """Two groups with rates of their own: the caller swaps the rates, the groups, and replaces a group by a copy."""
    model = small_model()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": 0.01, "momentum": 0.5}], lr=1.0
    )

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    groups = optimizer.param_groups
    for call in range(CALLS):
        if call == 5:
            groups[0]["lr"], groups[1]["lr"] = groups[1]["lr"], groups[0]["lr"]
        if call == 9:
            groups.reverse()
        if call == 13:
            groups[0] = {**groups[0], "lr": 0.3}
        if call == 17:
            optimizer.param_groups = groups[:1]
        yield step(*batch(call))
    yield model.state_dict()


@program
def states_that_are_loaded_in_the_middle(capture: Capture) -> Iterator[Any]:
    """The caller saves the state of Adam after call 5, and loads it with another rate at calls 9 and 15."""
    saved: list[Any] = []

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if call == 5:
            saved.append(copy.deepcopy(optimizer.state_dict()))
        if call in (9, 15):
            state = copy.deepcopy(saved[0])
            state["param_groups"][0]["lr"] = 0.01 * call
            optimizer.load_state_dict(state)

    yield from trained(capture, lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True), before)


@program
def a_schedule_that_is_made_in_the_middle(capture: Capture) -> Iterator[Any]:
    """A constant rate first; at call 8 the caller makes a cyclic schedule that moves the momentum, too."""
    schedules: list[Any] = []

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if call == 8:
            schedules.append(lr_scheduler.CyclicLR(optimizer, 0.01, 0.2, 3, mode="exp_range", gamma=0.9))
        elif schedules:
            schedules[0].step()

    yield from trained(capture, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), before, 24)


@program
def schedules_in_a_chain(capture: Capture) -> Iterator[Any]:
    """A warm-up, then a factor of the user's, chained with a decay; at each call."""
    schedules: list[Any] = []

    def before(call: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if not schedules:
            warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
            factor = lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.95 if epoch % 2 else 1.02)
            schedules.append(lr_scheduler.SequentialLR(optimizer, [warm, factor], milestones=[4]))
        else:
            schedules[0].step()

    yield from trained(capture, lambda p: torch.optim.Adamax(p, lr=0.05), before)


def stepped_inside(capture: Capture, scheduler_of: Callable[[torch.optim.Optimizer], Any], calls: int = 24) -> Iterator[Any]:
    """Train with a scheduler that the step itself steps."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = scheduler_of(optimizer)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    for call in range(calls):
        yield step(*batch(call))
        yield scheduler.get_last_lr(), scheduler.last_epoch, optimizer.param_groups[0]["momentum"]
    yield model.state_dict()


@program
def one_cycle_inside(capture: Capture) -> Iterator[Any]:
    """OneCycleLR with its momentum, stepped by the step."""
    yield from stepped_inside(capture, lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=30))


@program
def triangles_inside(capture: Capture) -> Iterator[Any]:
    """CyclicLR, stepped by the step."""
    yield from stepped_inside(capture, lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.2, 4, mode="triangular2"))


@program
def warm_restarts_inside(capture: Capture) -> Iterator[Any]:
    """CosineAnnealingWarmRestarts, stepped by the step."""
    yield from stepped_inside(capture, lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4, 2))


@program
def a_warm_up_and_steps_inside(capture: Capture) -> Iterator[Any]:
    """A linear warm-up and then MultiStepLR, stepped by the step."""

    def scheduler_of(optimizer: torch.optim.Optimizer) -> Any:
        warm = lr_scheduler.LinearLR(optimizer, 0.2, total_iters=5)
        return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.MultiStepLR(optimizer, [4, 9])], milestones=[6])

    yield from stepped_inside(capture, scheduler_of)


@program
def a_lambda_with_a_count_inside(capture: Capture) -> Iterator[Any]:
    """LambdaLR with two functions of the user's, stepped by the step."""
    yield from stepped_inside(
        capture, lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch if epoch < 6 else 1 / epoch)
    )


@program
def rates_of_the_parameters_themselves(capture: Capture) -> Iterator[Any]:
    """Updates by hand with a factor that the caller sets at parameters, for the first time before call 7."""
    model = small_model()

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= 0.1 * getattr(parameter, "lr_scale", 1.0) * gradient
        return loss.detach()

    for call in range(CALLS):
        if call == 7:
            model[0].weight.lr_scale = 0.0
        if call == 14:
            model[0].weight.lr_scale = 3.0
        yield step(*batch(call))
    yield model.state_dict()


@program
def momentum_at_the_parameters(capture: Capture) -> Iterator[Any]:
    """Updates by hand, whose momentum is an attribute of each parameter that the step replaces."""
    model = small_model()

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                before = getattr(parameter, "velocity", None)
                parameter.velocity = parameter.grad.clone() if before is None else 0.9 * before + parameter.grad
                parameter -= 0.1 * parameter.velocity
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
        yield model[0].weight.velocity
        if call == 12:
            del model[2].bias.velocity
    yield model.state_dict()


@program
def gradients_in_attributes(capture: Capture) -> Iterator[Any]:
    """A hook adds gradients to `main_grad` at each parameter, which the optimizer gets in each second call."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.main_grad = torch.zeros_like(parameter)
        parameter.register_post_accumulate_grad_hook(lambda p: (p.main_grad.add_(p.grad), setattr(p, "grad", None))[1])

    @capture
    def step(x: Tensor, y: Tensor, update: bool) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if update:
            for parameter in model.parameters():
                parameter.grad = parameter.main_grad / 2
            optimizer.step()
            optimizer.zero_grad()
            for parameter in model.parameters():
                parameter.main_grad.zero_()
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call), call % 2 == 1)
        yield model[0].weight.main_grad
    yield model.state_dict()


@program
def a_wrapper_that_forwards_all_else(capture: Capture) -> Iterator[Any]:
    """An optimizer inside an object that divides gradients by how many calls were gathered and steps each third time."""

    class Accumulating:
        def __init__(self, inner: torch.optim.Optimizer, every: int) -> None:
            self._inner, self._every, self._seen = inner, every, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def step(self) -> None:
            self._seen += 1
            if self._seen == self._every:
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.grad /= self._seen
                self._inner.step()
                self._inner.zero_grad()
                self._seen = 0

    model = small_model()
    optimizer = Accumulating(torch.optim.AdamW(model.parameters(), lr=0.05), 3)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(28):
        if call == 15:
            optimizer._every = 2
        yield step(*batch(call))
    yield model.state_dict(), optimizer.state_dict()["state"]
