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
from xla_core.engine.compile.words import FloatForm
from xla_core.engine.graph.graph import Graph, Inputs, NumberPlace
from xla_core.engine.placement.planned import PlannedBuffer


def _bits(numbers: list[float]) -> bytes:
    """The bytes of floats: equal exactly for the same values, signs of zero and NaNs included."""
    return array("d", numbers).tobytes()


def _replaced(numbers: list[Any], indices: tuple[int, ...], others: list[Any]) -> list[Any]:
    """`numbers`, with those of `others` at `indices`."""
    if indices:
        numbers = numbers.copy()
        for index in indices:
            numbers[index] = others[index]
    return numbers


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """All that is compiled for one graph key on one device.

    floats, ints: the fixed numbers it was compiled with; the index of a number that later has another value moves for good to
    `varying_floats`/`varying_ints` (at most one more compile), and the number becomes an input. changed: the graph that passes made of it,
    if they changed it. described: the fields that all events about it share. built: the constants in the executable. float_form: of the
    floats that it takes.
    """

    floats: list[float]
    ints: list[int]
    bits: bytes
    varying_floats: tuple[int, ...] = ()
    varying_ints: tuple[int, ...] = ()
    executable: Executable | None = None
    built: Constants = Constants((), ())
    float_form: FloatForm = FloatForm.DOUBLE
    changed: Graph | None = None
    results: list[PlannedBuffer] | None = None
    graph_hash: str = ""
    described: dict[str, Any] = field(default_factory=dict)
    last_use: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # its own: other programs compile and run meanwhile

    def matches(self, inputs: Inputs) -> bool:
        """Whether the compiled constants equal the numbers of `inputs`. Those that are inputs already may have any value."""
        if not self.floats and not self.ints:
            return True
        floats, ints = self._fixed(inputs)
        return self.bits == _bits(floats) and self.ints == ints

    def adapt(self, inputs: Inputs) -> None:
        """Make inputs of the constants that differ from the numbers of `inputs`, so that a compile is due."""
        floats, ints = self._fixed(inputs)
        new = {index for index, (old, value) in enumerate(zip(self.floats, floats, strict=True)) if _bits([old]) != _bits([value])}
        count = len(floats)
        new.update(count + index for index, (old, value) in enumerate(zip(self.ints, ints, strict=True)) if old != value)
        if new:
            self.vary(self.varying | new)
            self.executable = None

    def _fixed(self, inputs: Inputs) -> tuple[list[float], list[int]]:
        return (
            _replaced(inputs.fixed_floats, self.varying_floats, self.floats),
            _replaced(inputs.fixed_ints, self.varying_ints, self.ints),
        )

    @property
    def varying(self) -> set[int]:
        """Indices of the numbers of `Graph.numbers()` that are inputs."""
        return {*self.varying_floats, *[len(self.floats) + index for index in self.varying_ints]}

    def vary(self, indices: set[int]) -> None:
        """Make the numbers of `Graph.numbers()` at these indices, and no others, inputs at the next compile."""
        count = len(self.floats)
        self.varying_floats = tuple(sorted(index for index in indices if index < count))
        self.varying_ints = tuple(sorted(index - count for index in indices if index >= count))

    @property
    def constants(self) -> Constants:
        """The numbers to compile in as constants."""
        return Constants(
            tuple(None if index in self.varying_floats else value for index, value in enumerate(self.floats)),
            tuple(None if index in self.varying_ints else value for index, value in enumerate(self.ints)),
        )

    def numbers(self, inputs: Inputs) -> tuple[list[float], list[int]]:
        """The floats and ints to pass: first those that always were inputs, then those that became inputs."""
        floats = inputs.floats + [inputs.fixed_floats[index] for index in self.varying_floats]
        ints = inputs.ints + [inputs.fixed_ints[index] for index in self.varying_ints]
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
            program = self._programs.get(key)
            if program is None:
                if len(self._programs) >= self._size:
                    # A walk over all of them, but only where a compile follows; a hit writes one number.
                    del self._programs[min(self._programs, key=lambda candidate: self._programs[candidate].last_use)]
                program = self._programs[key] = Program(inputs.fixed_floats, inputs.fixed_ints, _bits(inputs.fixed_floats))
            program.last_use = next(self._uses)
            return program

    def used(self, program: Program) -> None:
        """Note the use of a program that was found without a look-up."""
        program.last_use = next(self._uses)

    def compiled(self, most: int) -> list[tuple[Graph, Program]]:
        """At most so many programs that are compiled, the last one used first, with their graphs, which know no captured lines."""
        with self._lock:
            programs = [(key, program) for key, program in self._programs.items() if program.executable is not None]
        newest = sorted(programs, key=lambda pair: -pair[1].last_use)[:most]
        return [(Graph(*key[0]), program) for key, program in newest]

    def learn(self, program: Program, graph: Graph) -> None:
        """Make inputs of those numbers that are known to change, in a program that is about to be compiled.

        A number that changed in one program counts as changing in all programs of the same lines, which may differ in shapes: a schedule
        then does not compile each of them twice. A float also counts as changing if two programs have different values for it. An integer
        does not: integers follow from shapes, such as the start of the second half of a tensor.
        """
        places = graph.places()
        with self._lock:
            self._varying.update(place for index in program.varying if (place := places[index]) is not None)
            # Floats come first in `places`: the shorter list ends the loop.
            for place, value in zip(places, program.floats, strict=False):
                if place is not None and self._floats.setdefault(place, value) != value:
                    self._varying.add(place)
            program.vary(program.varying | graph.scheduled() | {index for index, place in enumerate(places) if place in self._varying})

    def forget_half(self) -> None:
        """Forget the half of the programs that was used least recently."""
        with self._lock:
            oldest = sorted(self._programs, key=lambda key: self._programs[key].last_use)
            for key in oldest[: -(-len(oldest) // 2)]:
                del self._programs[key]

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
