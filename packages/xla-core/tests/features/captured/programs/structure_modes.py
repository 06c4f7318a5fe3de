"""Modes of the process and of the caller, transforms of torch.func, seeds, contexts, and steps that are exported."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

import torch_xla

CALLS = 22


def small_model(seed: int = 107) -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


class Trainer:
    """A model, its optimizer, and a training step whose loss has a factor."""

    def __init__(self) -> None:
        self.model, self.factor = small_model(), 1.0
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of training; the loss, without its graph."""
        self.optimizer.zero_grad()
        loss = self.factor * F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@program
def another_default_dtype(capture: Capture) -> Iterator[Any]:
    """The step makes a tensor of the default dtype, which is double from call 7 to 13."""

    @capture
    def step(x: Tensor) -> Tensor:
        return x.double() * torch.full((4,), 0.1, device=x.device) + torch.ones(1, device=x.device) / 3

    before = torch.get_default_dtype()
    try:
        for call in range(CALLS):
            if call in (7, 13):
                torch.set_default_dtype(torch.float64 if call == 7 else before)
            yield step(torch.full((3, 4), call + 0.3, dtype=torch.float32).to("xla"))
    finally:
        torch.set_default_dtype(before)


@program
def gradients_off_for_the_whole_process(capture: Capture) -> Iterator[Any]:
    """The caller switches gradients off from call 3 to 6 and each call of 12 to 15; the step trains only if they are on."""
    trainer = Trainer()

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return trainer.step(x, y)
        return trainer.model(x).logsumexp(1)  # type: ignore[no-any-return]

    try:
        for call in range(CALLS):
            torch.set_grad_enabled(not (3 <= call < 6 or 12 <= call < 15))
            yield step(*batch(call))
    finally:
        torch.set_grad_enabled(True)
    yield trainer.model.state_dict()


@program
def deterministic_algorithms(capture: Capture) -> Iterator[Any]:
    """The mode is switched on between calls 6 and 14; the step asks for it, and has a scatter that is a sum."""
    trainer = Trainer()

    @capture
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
        sums = torch.zeros(3, 4, device=x.device).index_add(0, y, x)
        return trainer.step(x + sums.mean(0), y), torch.are_deterministic_algorithms_enabled()

    before = torch.are_deterministic_algorithms_enabled()
    try:
        for call in range(CALLS):
            torch.use_deterministic_algorithms(6 <= call < 14)
            yield step(*batch(call))
    finally:
        torch.use_deterministic_algorithms(before)


@program
def anomaly_mode_without_checks(capture: Capture) -> Iterator[Any]:
    """The caller trains within detect_anomaly(check_nan=False) from call 5 to 9."""
    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        with torch.autograd.set_detect_anomaly(5 <= call < 9, check_nan=False):
            yield step(*batch(call))
    yield trainer.model.state_dict()


@program(refused="read|value|anomaly")
def anomaly_mode_with_checks(capture: Capture) -> Iterator[Any]:
    """From call 5 on autograd reads whether gradients are finite."""
    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        with torch.autograd.set_detect_anomaly(call >= 5):
            yield step(*batch(call))


@program
def autocast_of_the_caller(capture: Capture) -> Iterator[Any]:
    """The caller alone decides: no autocast, bfloat16, or float16, in turn, and trains on with one set of weights."""
    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        dtype = torch.float16 if call % 4 == 3 else torch.bfloat16
        with torch.autocast("xla", dtype=dtype, enabled=call % 2 == 1):
            yield step(*batch(call))
    yield trainer.model.state_dict()


@program
def a_context_that_sets_a_flag(capture: Capture) -> Iterator[Any]:
    """A context manager of one's own changes an attribute of the object while the caller, or the step itself, is in it."""

    class Guided(Trainer):
        depth = 0

        @contextmanager
        def deeper(self, by: int) -> Iterator[None]:
            self.depth += by
            try:
                yield
            finally:
                self.depth -= by

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            with self.deeper(1):
                return super().step(x * self.depth, y) * self.depth

    trainer = Guided()
    step = capture(trainer.step)
    for call in range(CALLS):
        if call % 3 == 2 or call >= 18:
            with trainer.deeper(2):
                yield step(*batch(call))
        else:
            yield step(*batch(call))
        yield trainer.depth
    yield trainer.model.state_dict()


@program
def seeds_of_the_caller(capture: Capture) -> Iterator[Any]:
    """The caller seeds before call 2, each third call, and twice with the same seed at the end; noise follows the seed."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).to("xla")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.3)

    @capture
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return model(x) + 0.1 * torch.rand_like(x[:, :3]), torch.randperm(5, device=x.device)

    torch.manual_seed(1)
    for call in range(CALLS):
        if call == 2 or call % 3 == 0 or call >= 20:
            torch.manual_seed(7 if call >= 20 else call)
        yield step(torch.ones(2, 4).to("xla"))
        yield torch.rand(2, device="xla")


@program
def functional_training(capture: Capture) -> Iterator[Any]:
    """torch.func.functional_call and grad: weights and velocities are arguments and results, and the module stays as it was."""
    model = small_model()

    @capture
    def step(state: dict[str, dict[str, Tensor]], x: Tensor, y: Tensor) -> dict[str, dict[str, Tensor]]:
        def loss(weights: dict[str, Tensor]) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

        slopes = torch.func.grad(loss)(state["weights"])
        velocities = {name: 0.9 * velocity + slopes[name] for name, velocity in state["velocities"].items()}
        return {"weights": {name: weight - 0.1 * velocities[name] for name, weight in state["weights"].items()}, "velocities": velocities}

    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    state = {"weights": weights, "velocities": {name: torch.zeros_like(weight) for name, weight in weights.items()}}
    for call in range(CALLS):
        state = step(state, *batch(call))
        yield state
    yield model.state_dict()


@program
def gradients_of_each_sample(capture: Capture) -> Iterator[Any]:
    """vmap over grad gives a gradient per sample, which are clipped and averaged; the limit changes at calls 7 and 20."""
    trainer = Trainer()
    limits = {"norm": 1.0}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(trainer.model, weights, (x[None],)), y[None])

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        weights = {name: parameter.detach() for name, parameter in trainer.model.named_parameters()}
        slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, x, y)
        norms: Tensor = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes.values()]).norm(dim=0)
        factors = (limits["norm"] / (norms + 1e-6)).clamp(max=1.0)
        for name, parameter in trainer.model.named_parameters():
            parameter.grad = torch.einsum("n,n...->...", factors, slopes[name]) / len(x)
        trainer.optimizer.step()
        return norms

    for call in range(CALLS):
        limits["norm"] = {7: 0.1, 20: 0.5}.get(call, limits["norm"])
        yield step(*batch(call))
        yield list(trainer.model.parameters())


@program
def tables_that_are_cached_by_a_function(capture: Capture) -> Iterator[Any]:
    """Angles of positions are computed once per length by a cached function, inside of the first step that needs them."""

    @functools.lru_cache(maxsize=4)
    def angles(length: int) -> Tensor:
        return torch.outer(torch.arange(length, device="xla"), 10.0 ** -torch.arange(4, device="xla"))

    trainer = Trainer()

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        return trainer.step(x * angles(len(x)).cos(), y)

    for call in range(CALLS):
        if call == 12:
            angles.cache_clear()
        yield step(*batch(call, 6 if call >= 8 and call % 2 else 5))
    yield trainer.model.state_dict()


def exported(step: Any) -> Any:
    """The step as a file gives it back; the same step if it is recorded at each call."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            torch_xla.export_step(step, folder + "/train.step")
        except TypeError:
            return step
        return torch_xla.load_step(folder + "/train.step")


@program(refused="cannot be exported")
def a_step_that_is_exported(capture: Capture) -> Iterator[Any]:
    """A number and the rate change at call 7; after call 11 the step is exported and trains on from the file."""
    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        if call == 7:
            trainer.factor, trainer.optimizer.param_groups[0]["lr"] = 2.5, 0.03
        if call == 12:
            step = exported(step)
        yield step(*batch(call))


@program(refused="export|captured")
def a_step_that_is_exported_too_early(capture: Capture) -> Iterator[Any]:
    """A number of the loss changes, and the step is exported before it was called with that."""
    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        if call == 10:
            trainer.factor = 3.0
            step = exported(step)
        yield step(*batch(call))
