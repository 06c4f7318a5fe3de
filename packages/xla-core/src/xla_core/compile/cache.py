"""Compiled programs in memory, by graph key: least recently used goes first."""

from __future__ import annotations

import itertools
import struct
import threading
from array import array
from dataclasses import dataclass, field
from typing import Any

from xla_core.compile.compiler import Executable
from xla_core.compile.emit import Constants
from xla_core.ir.graph import Inputs


def _bits(numbers: list[float]) -> bytes:
    """Text of floats that is equal exactly for equal values, signs of zero and NaNs included."""
    return array("d", numbers).tobytes()


@dataclass(slots=True, eq=False)
class Program:
    """All that is compiled for one graph key on one device.

    floats, ints: the fixed numbers it was compiled with; a number that is later seen with another value moves for good to
    `varying_floats`/`varying_ints` (design: at most one more compile) and becomes an input. described: the same fields of all events
    about it.
    """

    floats: list[float]
    ints: list[int]
    bits: bytes
    varying_floats: tuple[int, ...] = ()
    varying_ints: tuple[int, ...] = ()
    executable: Executable | None = None
    graph_hash: str = ""
    described: dict[str, Any] = field(default_factory=dict)
    last_use: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def matches(self, inputs: Inputs) -> bool:
        """Whether the compiled constants are those of `inputs`; if not, what differs becomes an input and a compile is due."""
        if self.bits == _bits(inputs.fixed_floats) and self.ints == inputs.fixed_ints:
            return True
        floats = {
            number
            for number, (old, new) in enumerate(zip(self.floats, inputs.fixed_floats, strict=True))
            if struct.pack("d", old) != struct.pack("d", new)
        }
        ints = {number for number, (old, new) in enumerate(zip(self.ints, inputs.fixed_ints, strict=True)) if old != new}
        known = floats <= set(self.varying_floats) and ints <= set(self.varying_ints)
        if not known:
            self.varying_floats = tuple(sorted(floats.union(self.varying_floats)))
            self.varying_ints = tuple(sorted(ints.union(self.varying_ints)))
            self.executable = None
        return known

    @property
    def constants(self) -> Constants:
        """What to compile in."""
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
        self._uses = itertools.count(1)

    def __len__(self) -> int:
        return len(self._programs)

    def program(self, key: Any, inputs: Inputs) -> Program:
        """The program of `key`, made from `inputs`' numbers if it is new."""
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                if len(self._programs) >= self._size:
                    del self._programs[min(self._programs, key=lambda known: self._programs[known].last_use)]
                found = self._programs[key] = Program(inputs.fixed_floats, inputs.fixed_ints, _bits(inputs.fixed_floats))
            found.last_use = next(self._uses)
            return found

    def clear(self) -> None:
        """Forget all programs."""
        with self._lock:
            self._programs.clear()
