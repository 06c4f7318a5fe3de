"""Counters of Python, in all the places that Python has for a number, which the step or its caller changes."""

from __future__ import annotations

import collections
import contextvars
import itertools
import os
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor

updates = 0


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) + call).to("xla")


@program
def a_global_counter_as_a_factor(capture: Capture) -> Iterator[Any]:
    """The step raises a global variable and multiplies by it; the caller sets it back after call 11."""
    global updates
    updates = 0

    def scaled(x: Tensor) -> Tensor:
        global updates
        updates += 1
        return x * updates

    step = capture(scaled)
    for call in range(20):
        yield step(batch(call))
        yield updates
        if call == 11:
            updates = 100


@program
def a_nonlocal_counter_in_a_condition(capture: Capture) -> Iterator[Any]:
    """Every third call does more, by a counter in a closure that the caller sets to zero after call 7."""
    done = 0

    @capture
    def step(x: Tensor) -> Tensor:
        nonlocal done
        done += 1
        y = x * 2
        if done % 3 == 0:
            y = y - x.mean()
        return y

    for call in range(22):
        yield step(batch(call))
        if call == 7:
            done = 0
    yield done


@program
def a_counter_at_a_function(capture: Capture) -> Iterator[Any]:
    """The number of calls is an attribute of the function, read by its name."""

    def shifted(x: Tensor) -> Any:
        shifted.calls += 1  # type: ignore[attr-defined]
        return x + 0.5 * shifted.calls  # type: ignore[attr-defined]

    shifted.calls = 0  # type: ignore[attr-defined]
    step = capture(shifted)
    for call in range(20):
        if call == 15:
            shifted.calls = -3  # type: ignore[attr-defined]
        yield step(batch(call))
    yield shifted.calls  # type: ignore[attr-defined]


@program
def a_counter_at_a_class(capture: Capture) -> Iterator[Any]:
    """Two objects count in an attribute of their class, each with a captured method; their calls alternate."""

    class Worker:
        total = 0

        def __init__(self, weight: float) -> None:
            self.weight = weight

        def work(self, x: Tensor) -> Tensor:
            type(self).total += 1
            return x * self.weight + self.total

    first, second = Worker(2.0), Worker(-1.0)
    steps = capture(first.work), capture(second.work)
    for call in range(24):
        yield steps[call % 2](batch(call))
        if call == 9:
            second.weight = 5.0
    yield Worker.total, "total" in vars(first)


@program
def a_counter_at_a_module(capture: Capture) -> Iterator[Any]:
    """The global step is a variable of a module that holds the state of the run."""
    run: Any = types.ModuleType("run_state")
    run.global_step = 0
    run.stride = 4

    @capture
    def step(x: Tensor) -> Any:
        run.global_step += 1
        return x * (run.global_step // run.stride)

    for call in range(20):
        if call == 13:
            run.stride = 2
        yield step(batch(call))
        yield run.global_step


@program
def a_counter_in_a_dict(capture: Capture) -> Iterator[Any]:
    """State as checkpoints have it: an item of a dict counts, and another one is set by the caller at each call."""
    state: dict[str, Any] = {"step": 0, "epoch": 0, "best": None}

    @capture
    def step(x: Tensor) -> dict[str, Tensor]:
        state["step"] += 1
        scale = 1.0 if state["epoch"] < 2 else 0.5
        return {"y": x * scale / state["step"], "sum": x.sum() + state["epoch"]}

    for call in range(24):
        state["epoch"] = call // 6
        yield step(batch(call))
    yield dict(state)


@program
def a_counter_in_a_list(capture: Capture) -> Iterator[Any]:
    """A list of one number stands for a variable, and another list counts how often each branch ran."""
    current, ran = [0], [0, 0]

    @capture
    def step(x: Tensor) -> Tensor:
        current[0] += 1
        branch = current[0] % 4 == 0
        ran[branch] += 1
        return x.abs() if branch else x.neg()

    for call in range(22):
        yield step(batch(call))
        if call == 1:
            current[0] = 7
    yield current, ran


@dataclass
class RunState:
    """What a training loop carries."""

    step: int = 0
    seen: int = 0
    threshold: int = 9
    history: list[int] = field(default_factory=list)


@program
def a_counter_in_a_dataclass(capture: Capture) -> Iterator[Any]:
    """Calls beyond a threshold do something else, and one that meets it is noted; the caller raises the threshold after call 14."""
    state = RunState()

    @capture
    def step(x: Tensor) -> Tensor:
        state.step += 1
        state.seen += x.shape[0]
        if state.step == state.threshold:
            state.history.append(state.seen)
        return x * 10 if state.step > state.threshold else x.abs()

    for call in range(24):
        yield step(batch(call))
        if call == 14:
            state.threshold = 19
    yield state.step, state.seen, state.history


@program
def a_counter_in_slots(capture: Capture) -> Iterator[Any]:
    """An object without a dict counts, and the count is divided as an integer."""

    class Progress:
        __slots__ = ("every", "step")

        def __init__(self) -> None:
            self.step = 0
            self.every = 5

    progress = Progress()

    @capture
    def step(x: Tensor) -> Tensor:
        progress.step += 1
        return x + progress.step // progress.every

    for call in range(20):
        yield step(batch(call))
        if call % 3 == 0:
            progress.step += 1
    yield progress.step


@program
def a_counter_in_the_name_of_a_key(capture: Capture) -> Iterator[Any]:
    """The count is formatted into the name under which the result is returned and a weight is found."""
    run = types.SimpleNamespace(step=0, weights={f"w{n}": 0.5 * n for n in range(4)})

    @capture
    def step(x: Tensor) -> dict[str, Tensor]:
        run.step += 1
        return {f"loss/{run.step}": x * run.weights[f"w{run.step % 4}"]}

    for call in range(20):
        yield step(batch(call))
        if call == 8:
            run.weights["w2"] = -4.0
    yield run.step


@program(refused=r"thread|changes|local")
def a_counter_of_the_thread(capture: Capture) -> Iterator[Any]:
    """A count in the storage of the thread, raised inside and set by the caller after call 6."""
    local = threading.local()
    local.depth = 0

    @capture
    def step(x: Tensor) -> Any:
        local.depth += 1
        return x * local.depth

    for call in range(20):
        yield step(batch(call))
        if call == 6:
            local.depth = 50
    yield local.depth


@program
def a_context_variable_of_the_caller(capture: Capture) -> Iterator[Any]:
    """A context variable says how strong a term is: the caller sets it between calls 2 and 3, and for two calls within a token."""
    strength: contextvars.ContextVar[float] = contextvars.ContextVar("strength", default=1.0)

    @capture
    def step(x: Tensor) -> Tensor:
        return x * strength.get()

    yield step(batch(0))
    yield step(batch(1))
    token = strength.set(3.0)
    for call in range(2, 14):
        yield step(batch(call))
    strength.reset(token)
    for call in range(14, 18):
        yield step(batch(call))
    yield contextvars.Context().run(step, batch(18))


@program
def a_variable_of_the_environment(capture: Capture) -> Iterator[Any]:
    """A switch in the environment is turned on at call 7, off at call 12 and taken away at call 20."""
    name = "CAPTURED_PROGRAMS_SCALE"
    before = os.environ.get(name)

    @capture
    def step(x: Tensor) -> Tensor:
        return x * float(os.environ.get(name, "2")) if os.getenv(name) != "0" else x.neg()

    try:
        for call in range(24):
            if call in (7, 12):
                os.environ[name] = {7: "1.5", 12: "0"}[call]
            if call == 20:
                del os.environ[name]
            yield step(batch(call))
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


@program
def a_count_that_the_program_does_not_need(capture: Capture) -> Iterator[Any]:
    """Only Python keeps the number of steps and samples; they are read after each fifth call."""

    class Trainer:
        def __init__(self) -> None:
            self.steps = self.samples = 0

        def step(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.samples += x.size(0)
            return x.cumsum(0)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(batch(call, 3 + call % 2))
        if call % 5 == 4:
            yield trainer.steps, trainer.samples


@program
def a_switch_that_each_call_turns(capture: Capture) -> Iterator[Any]:
    """Generator and critic take turns by a truth value that the step negates; the caller turns it once itself."""

    class Turns:
        def __init__(self) -> None:
            self.critic = True

        def step(self, x: Tensor) -> Tensor:
            y = x * 3 if self.critic else x - 1
            self.critic = not self.critic
            return y

    turns = Turns()
    step = capture(turns.step)
    for call in range(20):
        yield step(batch(call))
        if call == 10:
            turns.critic = not turns.critic
        yield turns.critic


@program(refused=r"iterator|count|differs|was .* in call|changes")
def a_count_of_itertools(capture: Capture) -> Iterator[Any]:
    """The number of the step comes from itertools.count."""
    numbers = itertools.count(1)

    @capture
    def step(x: Tensor) -> Tensor:
        return x * next(numbers)

    for call in range(20):
        yield step(batch(call))
    yield next(numbers)


@program(refused=r"iterator|cycle|differs|was .* in call|changes|same program")
def a_cycle_of_itertools(capture: Capture) -> Iterator[Any]:
    """The step takes the next of three factors, two of which are the same."""
    factors = itertools.cycle([1.0, 1.0, -2.0])

    @capture
    def step(x: Tensor) -> Tensor:
        return x * next(factors)

    for call in range(21):
        yield step(batch(call))


@program
def counts_of_kinds(capture: Capture) -> Iterator[Any]:
    """A Counter and a defaultdict count the shapes and modes that came; the mode is an argument."""
    shapes: collections.Counter[tuple[int, ...]] = collections.Counter()
    modes: dict[str, int] = collections.defaultdict(int)

    @capture
    def step(x: Tensor, mode: str) -> Tensor:
        shapes[tuple(x.shape)] += 1
        modes[mode] += 1
        return x.relu() if mode == "train" else x.sigmoid()

    for call in range(24):
        yield step(batch(call, 3 + call % 2), "train" if call % 5 else "eval")
    yield sorted(shapes.items()), sorted(modes.items())
