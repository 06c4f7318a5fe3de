"""How code is put together: functions in functions, threads, autograd functions, operators of one's own, errors and early returns."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def small_model(seed: int = 89) -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


class Trainer:
    """A model, its optimizer and a plain training step."""

    def __init__(self, seed: int = 89, rate: float = 0.1) -> None:
        self.model = small_model(seed)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step of training; the loss, without its graph."""
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


@program
def captured_inside_captured(capture: Capture) -> Iterator[Any]:
    """A captured training step calls a captured function, which each third call uses alone, too; its factor changes at calls 7 and 20."""
    trainer, factor = Trainer(), 1.0

    @capture
    def targets(x: Tensor) -> Tensor:
        return (x.sum(1).sigmoid() * factor).detach()

    @capture
    def step(x: Tensor) -> Tensor:
        trainer.optimizer.zero_grad()
        loss = F.mse_loss(trainer.model(x)[:, 0], targets(x))
        loss.backward()
        trainer.optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        factor = {7: 2.0, 20: -1.0}.get(call, factor)
        yield step(batch(call)[0])
        if call % 3 == 2:
            yield targets(batch(call)[0])
    yield trainer.model.state_dict()


@program
def a_captured_function_that_calls_itself(capture: Capture) -> Iterator[Any]:
    """The function goes down by its own captured name, two or three levels, and each level adds its depth."""
    layer = small_model()[0]

    @capture
    def tree(x: Tensor, depth: int) -> Tensor:
        if depth == 0:
            return x.sum(1)
        left, right = x.chunk(2, 1) if x.shape[1] > 1 else (x, x)
        found: Tensor = tree(left, depth - 1) - tree(right, depth - 1) + depth * layer.weight.detach().sum()  # type: ignore[operator]
        return found

    for call in range(CALLS):
        yield tree(batch(call)[0], 2 if call % 4 else 3)


@program
def a_step_in_another_thread(capture: Capture) -> Iterator[Any]:
    """The first five calls are made by this thread, each third later one by a new thread, and the rest by a worker."""
    trainer = Trainer()
    step = capture(trainer.step)
    with ThreadPoolExecutor(1) as worker:
        for call in range(CALLS):
            if call < 5:
                yield step(*batch(call))
            elif call % 3 == 0:
                with ThreadPoolExecutor(1) as other:
                    yield other.submit(step, *batch(call)).result()
            else:
                yield worker.submit(step, *batch(call)).result()
    yield trainer.model.state_dict()


@program
def two_threads_with_models_of_their_own(capture: Capture) -> Iterator[Any]:
    """Two threads train at the same time, each its own model by its own captured step."""
    trainers = [Trainer(1, 0.1), Trainer(2, 0.2)]

    def train(trainer: Trainer) -> list[Tensor]:
        step = capture(trainer.step)
        return [step(*batch(call)).cpu() for call in range(20)]

    with ThreadPoolExecutor(2) as workers:
        yield [running.result() for running in [workers.submit(train, trainer) for trainer in trainers]]
    yield [trainer.model.state_dict() for trainer in trainers]


@program
def two_threads_that_share_a_step(capture: Capture) -> Iterator[Any]:
    """Two threads call one captured step by turns, under a lock; the rate is lowered by whichever comes to call 12."""
    trainer = Trainer()
    step = capture(trainer.step)
    turn = threading.Condition()
    losses: list[Tensor] = []

    def is_next(call: int) -> bool:
        return len(losses) >= call

    def train(parity: int) -> None:
        for call in range(parity, CALLS, 2):
            with turn:
                turn.wait_for(functools.partial(is_next, call), timeout=60)
                if call == 12:
                    trainer.optimizer.param_groups[0]["lr"] = 0.01
                try:
                    losses.append(step(*batch(call)))
                except BaseException:
                    losses.extend([torch.zeros(())] * CALLS)
                    raise
                finally:
                    turn.notify_all()

    with ThreadPoolExecutor(2) as workers:
        for running in [workers.submit(train, parity) for parity in (0, 1)]:
            running.result()
    yield losses
    yield trainer.model.state_dict()


class Reverse(torch.autograd.Function):
    """Passes values on, and turns gradients round, by a factor that is a variable of the class."""

    factor = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same values."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient times the factor of the class."""
        return gradient * -Reverse.factor


@program
def a_gradient_with_a_factor_of_its_class(capture: Capture) -> Iterator[Any]:
    """The caller changes the variable that only the backward pass reads: at calls 2 and 7, and from 16 on at each call."""
    trainer = Trainer()

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        trainer.optimizer.zero_grad()
        hidden = Reverse.apply(trainer.model[:2](x))  # type: ignore[no-untyped-call]
        loss = F.cross_entropy(trainer.model[2](hidden), y)
        loss.backward()
        trainer.optimizer.step()
        return loss.detach()

    try:
        for call in range(CALLS):
            if call in (2, 7) or call >= 16:
                Reverse.factor = 1.0 - call / 10
            yield step(*batch(call))
            yield list(trainer.model.parameters())
    finally:
        Reverse.factor = 1.0


@program
def a_gradient_with_a_factor_that_rises(capture: Capture) -> Iterator[Any]:
    """Training against a domain: the factor of the reversed gradient is given to apply(), and the step computes it from a count."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
            ctx.alpha = alpha
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return -ctx.alpha * gradient, None

    class Adversary(Trainer):
        seen = 0

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            alpha = min(1.0, self.seen / 10)
            self.seen += 1
            self.optimizer.zero_grad()
            hidden = Scale.apply(self.model[:2](x), alpha)  # type: ignore[no-untyped-call]
            loss = F.cross_entropy(self.model[2](hidden), y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Adversary()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(*batch(call))
        yield trainer.seen
    yield trainer.model.state_dict()


NOTED: list[tuple[int, ...]] = []


@torch.library.custom_op("captured_programs::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    """Twice the values; notes the shape in a list of Python."""
    NOTED.append(tuple(x.shape))
    return x * 2


@noted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@program(refused="operator|noted|changes|append")
def an_operator_with_an_effect_in_python(capture: Capture) -> Iterator[Any]:
    """An operator of one's own appends to a global list whenever it runs."""

    @capture
    def step(x: Tensor) -> Tensor:
        return noted(x + 1)  # type: ignore[no-any-return]

    NOTED.clear()
    for call in range(CALLS):
        yield step(batch(call, 3 + call % 2)[0])
        yield list(NOTED)


@program
def functions_made_inside(capture: Capture) -> Iterator[Any]:
    """The step defines functions with variables of their own, makes a partial and sorts with a lambda; a number changes each fifth call."""
    settings: dict[str, Any] = {"gain": 1.0, "names": ["b", "a"]}
    layer = nn.Linear(4, 3).to("xla")
    with torch.no_grad():
        layer.weight.copy_(torch.arange(12.0).reshape(3, 4) / 10)
        layer.bias.zero_()

    @capture
    def step(x: Tensor) -> dict[str, Tensor]:
        gain: float = settings["gain"]

        def scaled(value: Tensor, power: int) -> Tensor:
            return value.pow(power) * gain

        parts: dict[str, Callable[[Tensor], Tensor]] = {"a": functools.partial(scaled, power=2), "b": lambda value: scaled(value, 3) - gain}
        return {name: parts[name](layer(x).detach()) for name in sorted(settings["names"], key=lambda name: (-gain, name))}

    for call in range(CALLS):
        if call % 5 == 4:
            settings["gain"] = -settings["gain"] * 1.5
        if call == 12:
            settings["names"] = ["a"]
        yield step(batch(call)[0])


@program
def closures_that_are_replaced(capture: Capture) -> Iterator[Any]:
    """The loss is a function with a weight in its closure; the caller makes a new one at calls 3 and 7, and then each third call."""

    def weighted(weight: float, kind: str) -> Callable[[Tensor, Tensor], Tensor]:
        def loss(logits: Tensor, y: Tensor) -> Tensor:
            return weight * (F.cross_entropy(logits, y) if kind == "entropy" else F.multi_margin_loss(logits, y))

        return loss

    class Weighted(Trainer):
        loss = staticmethod(weighted(1.0, "entropy"))

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Weighted()
    step = capture(trainer.step)
    for call in range(CALLS):
        if call in (3, 7) or call > 12 and call % 3 == 0:
            trainer.loss = weighted(1 + call / 10, "margin" if call % 2 else "entropy")
        yield step(*batch(call))
    yield trainer.model.state_dict()


@program
def an_error_in_some_calls(capture: Capture) -> Iterator[Any]:
    """An attribute makes the step raise behind the backward pass, before the optimizer: at calls 1, 7, 8 and 20; the caller goes on."""

    class Fragile(Trainer):
        broken = False

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            if self.broken:
                raise FloatingPointError("the loss is not finite")
            self.optimizer.step()
            return loss.detach()

    trainer = Fragile()
    step = capture(trainer.step)
    for call in range(24):
        trainer.broken = call in (1, 7, 8, 20)
        try:
            yield step(*batch(call))
        except FloatingPointError as error:
            yield str(error)
        yield [parameter.grad for parameter in trainer.model.parameters()]
        yield list(trainer.model.parameters())


@program
def an_early_return(capture: Capture) -> Iterator[Any]:
    """The step gives back its argument while it is switched off, and a shorter tuple while it does not train."""

    class Switched(Trainer):
        mode = "train"

        def step(self, x: Tensor, y: Tensor) -> Any:
            if self.mode == "off":
                return x
            if self.mode == "eval":
                return self.model(x).argmax(1), None
            return super().step(x, y), self.mode

    trainer = Switched()
    step = capture(trainer.step)
    for call in range(24):
        trainer.mode = {0: "train", 3: "off", 6: "train", 9: "eval", 12: "train", 18: "off", 20: "train"}.get(call, trainer.mode)
        x, y = batch(call)
        found = step(x, y)
        yield found
        yield found is x
    yield trainer.model.state_dict()
