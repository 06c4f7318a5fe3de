"""Read what programs found wrong in their data, and raise the errors that it means."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import jax
import numpy as np

from xla_core.engine.compile.compiler import checks_of
from xla_core.engine.compile.emit import Constants
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.placement.placement import Placement
from xla_core.ops.checks import NOTHING, error_of


@dataclass(frozen=True, slots=True)
class _Unread:
    """What the checks of a launched program found, and what says which checks those are."""

    found: jax.Array
    graph: Graph
    constants: Constants
    placement: Placement


_unread: dict[Recorder, deque[_Unread]] = {}


def expect(recorder: Recorder, found: jax.Array, graph: Graph, constants: Constants, placement: Placement) -> None:
    """Keep what the checks of a program find, to be read by `look`."""
    _unread.setdefault(recorder, deque()).append(_Unread(found, graph, constants, placement))


def look(recorder: Recorder, wait: bool) -> None:
    """Raise the error that a finished program found in its data, as torch does on the CPU, with the user's line.

    wait: for all launched programs; else stop at the first that still runs.
    """
    unread = _unread.get(recorder)
    while unread:
        try:
            launched = unread.popleft()
        except IndexError:
            return  # another thread looks at it
        if not wait and not launched.found.is_ready():  # type: ignore[attr-defined]
            unread.appendleft(launched)
            return
        try:
            found = np.asarray(launched.found)
        except RuntimeError:
            continue  # the program failed: its results say so
        values, nothing = found.tolist(), NOTHING[found.dtype]
        if max(values) != nothing:
            raise _error(launched, values, nothing)


def _error(launched: _Unread, values: list[int], nothing: int) -> Exception:
    """The error of the first check that found something."""
    graph = launched.graph
    checks = checks_of(graph, launched.constants, launched.placement)
    value, (slot, check) = next((value, check) for value, check in zip(values, checks, strict=True) if value != nothing)
    name = graph.entries[slot][0].name  # type: ignore[index]
    line = graph.line(slot)
    where = f" ({name}, recorded at {line})" if line else f" ({name})"
    return error_of(check.fault, value, check.numbers, where)
