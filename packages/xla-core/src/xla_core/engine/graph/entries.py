"""Entries of a pending graph: leaves, numbers and operations.

A *slot* is a position on the pending graph. Each slot holds one entry:

* an `Aval`: a leaf, given as a device buffer;
* a `ScalarInput`: a host number given with the program (a Python scalar, a 0-d CPU tensor, a random seed);
* a tuple `(signature, slot, slot, …)`: an operation over earlier slots. With one result its slot is the result's; with
  several, the results take the slots behind it;
* `None`: a result of the nearest operation before it.

Entries hold no tensors and compare by identity and small integers, so `tuple(entries)` is the cache key of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from xla_core.engine.graph.aval import Aval

Entry: TypeAlias = "Aval | ScalarInput | tuple[Any, ...] | None"


class ScalarKind(Enum):
    """Which packed host array carries a scalar input."""

    FLOAT = "f64"
    INT = "i64"
    SEED = "seed"

    __hash__ = object.__hash__  # that of Enum is Python code, which would run for each number of a program's key


class ScalarInput(NamedTuple):
    """A number that enters a program from the host.

    fixed: compiled in as a constant until it is seen with a second value; else an input from the start.
    aval: of a 0-d CPU tensor; None for a Python number, which keeps torch's weak promotion.
    """

    kind: ScalarKind
    fixed: bool
    aval: Aval | None = None


FLOAT_INPUT = ScalarInput(ScalarKind.FLOAT, False)
FLOAT_FIXED = ScalarInput(ScalarKind.FLOAT, True)
INT_INPUT = ScalarInput(ScalarKind.INT, False)
INT_FIXED = ScalarInput(ScalarKind.INT, True)
SEED = ScalarInput(ScalarKind.SEED, False)


class NamedLine(str):
    """The user's line of an operation, and what compiled programs show beside it.

    scopes: the profiler's, outermost first; then prefix. Both stand before the operation's name. callers: the lines that this one was
    called from, innermost first.
    """

    scopes: tuple[str, ...] = ()
    prefix: str = ""
    callers: tuple[str, ...] = ()


def operation_at(entries: Sequence[Entry], slot: int) -> int:
    """The slot of the operation, leaf or scalar input that defines the value at `slot`."""
    if entries[slot] is None:
        while type(entries[slot]) is not tuple:
            slot -= 1
    return slot


def result_slots(entries: Sequence[Entry], slot: int) -> list[int]:
    """The slots of the results of the operation at `slot`: its own, or those behind it."""
    entry = entries[slot]
    count = len(entry[0].outs) if type(entry) is tuple else 1
    return [slot] if count == 1 else list(range(slot + 1, slot + 1 + count))


def aval_at(entries: Sequence[Entry], slot: int) -> Aval | None:
    """Shape and dtype of the value at `slot`; None for a Python number or an absent result."""
    entry = entries[slot]
    if isinstance(entry, ScalarInput):
        return entry.aval
    if isinstance(entry, Aval):
        return entry
    start = slot
    while type(entry) is not tuple:
        start -= 1
        entry = entries[start]
    outs: tuple[Aval | None, ...] = entry[0].outs
    return outs[0] if len(outs) == 1 else outs[slot - start - 1]
