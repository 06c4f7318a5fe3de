"""Compiled programs in memory, by graph key: least recently used goes first."""

from __future__ import annotations

import itertools
import threading
from array import array
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from xla_core.base import config
from xla_core.engine.compile.compiler import Executable
from xla_core.engine.compile.emit import Constants
from xla_core.engine.graph.graph import Graph, Inputs, NumberPlace


def _bits(numbers: list[float]) -> bytes:
    """Text of floats that is equal exactly for equal values, signs of zero and NaNs included."""
    return array("d", numbers).tobytes()


def _replaced(numbers: list[Any], places: tuple[int, ...], others: list[Any]) -> list[Any]:
    """`numbers`, at `places` those of `others`."""
    if places:
        numbers = numbers.copy()
        for place in places:
            numbers[place] = others[place]
    return numbers


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """All that is compiled for one graph key on one device.

    floats, ints: the fixed numbers it was compiled with; a number that is later seen with another value moves for good to
    `varying_floats`/`varying_ints` (at most one more compile) and becomes an input. changed: what graph
    passes made of it, if anything else. described: the same fields of all events about it.
    """

    floats: list[float]
    ints: list[int]
    bits: bytes
    varying_floats: tuple[int, ...] = ()
    varying_ints: tuple[int, ...] = ()
    executable: Executable | None = None
    changed: Graph | None = None
    graph_hash: str = ""
    described: dict[str, Any] = field(default_factory=dict)
    last_use: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # its own: other programs compile and run meanwhile

    def matches(self, inputs: Inputs) -> bool:
        """Whether the compiled constants are those of `inputs`; if not, what differs becomes an input and a compile is due."""
        if not self.floats and not self.ints:
            return True
        # Numbers that are inputs already may have any value.
        floats = _replaced(inputs.fixed_floats, self.varying_floats, self.floats)
        ints = _replaced(inputs.fixed_ints, self.varying_ints, self.ints)
        if self.bits == _bits(floats) and self.ints == ints:
            return True
        new = {number for number, (old, value) in enumerate(zip(self.floats, floats, strict=True)) if _bits([old]) != _bits([value])}
        count = len(floats)
        new.update(count + number for number, (old, value) in enumerate(zip(self.ints, ints, strict=True)) if old != value)
        self.vary(self.varying | new)
        self.executable = None
        return False

    @property
    def varying(self) -> set[int]:
        """Which of `Graph.numbers()` are inputs."""
        return {*self.varying_floats, *[len(self.floats) + number for number in self.varying_ints]}

    def vary(self, numbers: set[int]) -> None:
        """Make those of `Graph.numbers()`, and no others, inputs when it is compiled next."""
        count = len(self.floats)
        self.varying_floats = tuple(sorted(number for number in numbers if number < count))
        self.varying_ints = tuple(sorted(number - count for number in numbers if number >= count))

    @property
    def constants(self) -> Constants:
        """The numbers to compile in as constants."""
        return Constants(
            tuple(None if number in self.varying_floats else value for number, value in enumerate(self.floats)),
            tuple(None if number in self.varying_ints else value for number, value in enumerate(self.ints)),
        )

    def numbers(self, inputs: Inputs) -> tuple[list[float], list[int]]:
        """The floats and ints to pass: those that always were inputs, then those that became inputs."""
        floats = inputs.floats + [inputs.fixed_floats[number] for number in self.varying_floats]
        ints = inputs.ints + [inputs.fixed_ints[number] for number in self.varying_ints]
        return floats, ints


class ProgramCache:
    """Programs by key, at most `size` of them; thread-safe.

    A look-up hashes its key, a tuple of all operations, once: the order of use is kept in the programs, not in the dictionary.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._programs: dict[Any, Program] = {}
        self._varying: set[NumberPlace] = set()
        self._floats: dict[NumberPlace, float] = {}  # as the first program with one there was compiled
        self._uses = itertools.count(1)

    def __len__(self) -> int:
        return len(self._programs)

    def program(self, key: Any, inputs: Inputs) -> Program:
        """The program of `key`, made from `inputs`' numbers if it is new."""
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                if len(self._programs) >= self._size:
                    # A walk over all of them, but only where a compile follows; a hit writes one number.
                    del self._programs[min(self._programs, key=lambda known: self._programs[known].last_use)]
                found = self._programs[key] = Program(inputs.fixed_floats, inputs.fixed_ints, _bits(inputs.fixed_floats))
            found.last_use = next(self._uses)
            return found

    def used(self, program: Program) -> None:
        """Note the use of a program that was found without a look-up."""
        program.last_use = next(self._uses)

    def learn(self, program: Program, graph: Graph) -> None:
        """Make inputs of those numbers of a program, which is about to be compiled, that are known to change.

        What a number has done in one program, it does in all programs of the same lines, which may differ in shapes: a schedule
        need not compile each of them twice. A float has changed, too, if two programs have different ones. Not so whole numbers,
        which follow from shapes: where the second half of a tensor begins.
        """
        places = graph.places()
        with self._lock:
            self._varying.update(place for number in program.varying if (place := places[number]) is not None)
            # Floats come first in `places`: the shorter list ends the loop.
            for place, value in zip(places, program.floats, strict=False):
                if place is not None and self._floats.setdefault(place, value) != value:
                    self._varying.add(place)
            program.vary(program.varying | graph.scheduled() | {number for number, place in enumerate(places) if place in self._varying})

    def clear(self) -> None:
        """Forget all programs, and what was learned from them."""
        with self._lock:
            self._programs.clear()
            self._varying.clear()
            self._floats.clear()


@cache
def programs() -> ProgramCache:
    """The in-memory cache of this process."""
    return ProgramCache(config.COMPILATION_CACHE_SIZE.get())
