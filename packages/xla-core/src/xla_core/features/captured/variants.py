"""The calls of a captured function with alike arguments: their programs, and recorded calls that wait for another like them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from xla_core.engine.graph.pending_graph import Recorder
from xla_core.features.captured.arguments import Arguments, Form, modes
from xla_core.features.captured.launch import Launch, Ready
from xla_core.features.captured.recorded import Recorded

MOST_VARIANTS = 16
"""Keep the programs of at most so many kinds of arguments."""
MOST_STATES = 16
"""Keep at most so many programs of one kind, for the states of Python that recur, and so many recorded calls that wait for another."""


@dataclass(slots=True, eq=False)
class Program:
    """A captured program, the arguments that it serves, and the program of the call that followed when it was launched last."""

    launch: Launch
    form: Form
    follower: Program | None = None


@dataclass(slots=True, eq=False)
class Variant:
    """The state of calls with equal arguments. objects: kept, since the key has their ids.

    programs: last the one that was used last; waiting: recorded calls without another like them. attempts: recorded calls since a program
    was captured or served, `surprises` of them without a reason that can be seen; way: index in `WAYS`;
    problems: recorded calls in a row that cannot be captured; idle: calls that computed nothing.
    unused: captured programs since one of them was used. latest: the last recorded call.
    """

    objects: list[Any]
    programs: list[Program] = field(default_factory=list)
    waiting: list[Recorded] = field(default_factory=list)
    attempts: int = 0
    problems: int = 0
    surprises: int = 0
    unused: int = 0
    way: int = 0
    idle: int = 0
    given_up: bool = False
    latest: Recorded | None = None

    def ordered(self) -> list[Program]:
        """The programs, first those that are likely to serve the next call."""
        if len(self.programs) < 2:
            return self.programs
        latest_first = self.programs[::-1]
        likely = latest_first[0].follower
        return (
            latest_first
            if likely is None or likely not in latest_first
            else [likely, *[each for each in latest_first if each is not likely]]
        )

    def fitting(self, arguments: Arguments) -> tuple[Program | None, Ready | None]:
        """The program that can serve a call, and what it needs; None if none can."""
        for program in self.ordered():
            ready = program.launch.ready(arguments)
            if ready is not None:
                return program, ready
        return None, None

    def used(self, program: Program) -> None:
        """Note that a program served a call."""
        self.attempts = self.unused = 0
        if self.programs[-1] is not program:
            self.programs[-1].follower = program
            self.programs.remove(program)
            self.programs.append(program)
        else:
            program.follower = program

    def add(self, program: Program) -> None:
        """Keep a program."""
        if self.programs:
            self.programs[-1].follower = program
        self.programs = [*self.programs[-(MOST_STATES - 1) :], program]
        self.attempts = 0
        self.unused += 1

    def wait(self, recorded: Recorded) -> None:
        """Keep a recorded call until there is another like it."""
        self.waiting = [*self.waiting[-(MOST_STATES - 1) :], recorded]


class _Thread(threading.local):
    """Stands for a thread: context variables and thread-local objects have values of their own in each."""

    def __init__(self) -> None:
        self.token = object()


_thread = _Thread()


class Variants:
    """The variants of one function, by the properties of arguments and the caller's modes; the least recently used is forgotten.

    unserved: kinds of arguments that were met since a captured program served a call.
    """

    def __init__(self) -> None:
        self._by_key: OrderedDict[Any, Variant] = OrderedDict()
        self.unserved = 0

    def of(self, recorder: Recorder, arguments: Arguments) -> Variant | None:
        """The variant of a call; None if its arguments are of a new kind."""
        key = (recorder, _thread.token, *modes(), *arguments.key)
        variant = self._by_key.get(key)
        if variant is not None:
            self._by_key.move_to_end(key)
        return variant

    def add(self, recorder: Recorder, arguments: Arguments) -> Variant:
        """Add a variant for a call."""
        if len(self._by_key) >= MOST_VARIANTS:
            self._by_key.popitem(last=False)
        variant = self._by_key[recorder, _thread.token, *modes(), *arguments.key] = Variant(arguments.objects)
        self.unserved += 1
        return variant

    def varying(self) -> str:
        """Why the last two variants are different ones, for a message."""
        before, now = [variant.objects for variant in self._by_key.values()][-2:]
        for other, new in zip(before, now, strict=False):
            if other is not new:
                return f"an argument, or what one holds, is another {type(new).__name__} each time: make it once, or give what it holds"
        return "shapes, dtypes, texts or nestings among its arguments are others each time: pad inputs to a few shapes"

    def start_again(self) -> None:
        """Forget all programs: the calls have other arguments now."""
        for variant in self._by_key.values():
            variant.programs, variant.waiting = [], []

    def programs(self) -> list[Program]:
        """All programs."""
        return [program for variant in self._by_key.values() for program in variant.programs]
