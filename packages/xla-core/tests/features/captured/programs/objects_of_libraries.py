"""State that code of Python's library reads at once, keeps, or has users set attributes on; and numbers that it takes."""

from __future__ import annotations

import copy
import functools
import pickle
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 20


class Settings:
    """Whose objects are copied and pickled."""

    rate = 1.0


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


@program
def copies_of_settings(capture: Capture) -> Iterator[Any]:
    """The step copies its settings in three ways, and changes the copies."""
    settings = Settings()

    def scaled(x: Tensor) -> Tensor:
        copies = [copy.copy(settings), copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))]
        for number, each in enumerate(copies):
            each.rate = each.rate + number
        return x * copies[0].rate + copies[1].rate * copies[2].rate

    step = capture(scaled)
    for call in range(CALLS):
        if call in (7, 15):
            settings.rate = float(call)
        yield step(batch(call)), settings.rate


@program
def weights_that_are_named_later(capture: Capture) -> Iterator[Any]:
    """The loss adds up what an object, a namespace and a class have by names of a kind; they get more of them."""
    config, namespace = Settings(), types.SimpleNamespace(first=1.0)

    class Table:
        w_first = 3.0

    def total(x: Tensor) -> Tensor:
        sums = sum(vars(config).values()) + sum(vars(namespace).values())
        named = [getattr(Table, f"w_{name}", 0.5) for name in ("first", "second")]
        return x * sums + (named[0] if "extra" in config.__dict__ else named[1])

    step = capture(total)
    for call in range(CALLS):
        if call == 6:
            config.extra = 4.0  # type: ignore[attr-defined]
        if call == 10:
            namespace.second = 8.0
        if call == 14:
            Table.w_second = -2.0  # type: ignore[attr-defined]
        yield step(batch(call))


@program
def an_attribute_that_comes_and_goes(capture: Capture) -> Iterator[Any]:
    """The step itself sets and deletes an attribute by turns, and asks the `__dict__` for it."""
    holder = Settings()

    def turn(x: Tensor) -> Tensor:
        if "mark" in holder.__dict__:
            del holder.mark  # type: ignore[attr-defined]
            return x * 2
        holder.mark = 1  # type: ignore[attr-defined]
        return x * 3

    step = capture(turn)
    for call in range(CALLS):
        yield step(batch(call)), "mark" in vars(holder)


@program
def a_fraction_or_a_count(capture: Capture) -> Iterator[Any]:
    """A number means a fraction if it is a float, and a count if it is not; the caller changes it, kind included."""
    config = Settings()

    def shrunk(x: Tensor) -> Tensor:
        match config.rate:
            case float():
                return x * config.rate
            case int():
                return x[: config.rate]

    step = capture(shrunk)
    for call in range(CALLS):
        config.rate = 1 + call % 3 if call % 8 < 5 else 0.5 + call
        yield step(batch(call))


@program
def a_cache_that_is_filled_anew(capture: Capture) -> Iterator[Any]:
    """Cached functions, with a bound and without, are cleared and filled to the same counts from another table."""
    table = {"a": 1.0, "b": 2.0}

    @functools.lru_cache(maxsize=2)
    def bounded(key: str) -> float:
        return table[key]

    @functools.cache
    def unbounded(key: str) -> float:
        return table[key] * 10

    step = capture(lambda x: x * bounded("a") + unbounded("b"))
    for call in range(CALLS):
        if call == 12:
            table.update(a=5.0, b=7.0)
            bounded.cache_clear()
            unbounded.cache_clear()
            bounded("a"), unbounded("b")
        yield step(batch(call))


@program
def attributes_of_objects_of_python(capture: Capture) -> Iterator[Any]:
    """The user's attributes on a partial, a cached function, an event and an executor."""
    partial, event, executor = functools.partial(torch.mul, other=2.0), threading.Event(), ThreadPoolExecutor(1)
    cached = functools.cache(abs)
    holders: list[Any] = [partial, event, executor, cached]
    for number, holder in enumerate(holders):
        holder.rate = float(number)
    step = capture(lambda x: partial(x) * partial.rate + event.rate * executor.rate + cached.rate)  # type: ignore[attr-defined]
    for call in range(CALLS):
        if call % 4 == 3:
            holders[call // 4 % 4].rate = float(call)
        yield step(batch(call))
    executor.shutdown()


@program
def listeners_that_are_known_weakly(capture: Capture) -> Iterator[Any]:
    """Listeners in a set of weak references, and weights by object in a dict of them; some are added, one ends."""
    one, other = Settings(), Settings()
    listeners = weakref.WeakSet([one])
    weights = weakref.WeakKeyDictionary({one: 2.0})
    step = capture(lambda x: x * sum(each.rate for each in listeners) + sum(weights.values()))
    for call in range(CALLS):
        if call == 6:
            listeners.add(other)
        if call == 9:
            weights[other] = 3.0
        if call == 13:
            other.rate = 5.0
        if call == 16:
            del other
        yield step(batch(call))


@program
def a_thread_local_with_defaults(capture: Capture) -> Iterator[Any]:
    """A class derived from threading.local has a default; this thread sets its own later."""

    class Own(threading.local):
        rate = 2.0

    own = Own()
    step = capture(lambda x: x * own.rate)
    for call in range(CALLS):
        if call == 9:
            own.rate = 3.0
        yield step(batch(call))


@program
def whole_numbers_for_python(capture: Capture) -> Iterator[Any]:
    """A counter is the length of a deque and a hash."""

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return self.number

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Key) and other.number == self.number

    config = Settings()
    step = capture(lambda x: x * len(deque(range(20), maxlen=config.rate)) + len({Key(config.rate), Key(3)}))
    for call in range(CALLS):
        config.rate = 1 + call % 5
        yield step(batch(call))


@program
def saved_tensors_that_are_halved(capture: Capture) -> Iterator[Any]:
    """In some calls, hooks of the caller take what operations save for gradients."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).tanh().square().sum()
        loss.backward()
        optimizer.step()
        return loss

    for call in range(CALLS):
        if 8 <= call < 12:
            with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 0.5, lambda saved: saved):
                train(batch(call))
        else:
            train(batch(call))
        yield list(model.parameters())
