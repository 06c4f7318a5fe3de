"""Counters that cost recording nothing: they are worked out when they are read."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from itertools import compress, repeat
from operator import is_
from typing import Any

from xla_core.base import metrics
from xla_core.engine.graph.pending_graph import Value, buffers_made, counted
from xla_core.engine.runtime import client
from xla_core.engine.tensor.encode import Call
from xla_core.engine.tensor.tensor import XLATensor, made

_OBJECTS = ("CreateXlaTensor", "DestroyXlaTensor", "CreateDataHandles", "DestroyDataHandles")


def operation_counts(calls: Mapping[str, Call]) -> dict[str, int]:
    """`xla::<op>`: in-place and out= forms count under the out-of-place name."""
    counts: dict[str, int] = {}
    for call in calls.values():
        name = f"xla::{call.functional._schema.name.partition('::')[2]}"
        counts[name] = counts.get(name, 0) + call.count
    return counts


class LiveObjects:
    """Counts the tensors, and the values with a buffer, that are alive.

    Each object of a class holds a reference to the class, so the reference count of the class is the number of objects, plus that of other
    references. The latter comes from one walk of the garbage collector: a tenth of a second in a program of half a million objects.
    """

    def __init__(self) -> None:
        self._others: tuple[int, int] | None = None

    def count(self) -> tuple[int, int]:
        """Tensors and buffers alive now. A value of `torch.empty` that nobody has used counts as a buffer."""
        tensors, values = sys.getrefcount(XLATensor), sys.getrefcount(Value) - _pending_values()
        if self._others is None:
            live_tensors, live_buffers = walked()
            self._others = tensors - live_tensors, values - live_buffers
            return live_tensors, live_buffers
        return tensors - self._others[0], values - self._others[1]


def walked() -> tuple[int, int]:
    """Tensors and buffers alive now, from a walk over all objects of the garbage collector."""
    things = gc.get_objects()  # a million of them in a large program: no Python code for each
    kinds = list(map(type, things))
    buffers = sum(_buffer(value) is not None for value in compress(things, map(is_, kinds, repeat(Value))))
    return kinds.count(XLATensor), buffers


def _pending_values() -> int:
    """The number of values alive that are still to be computed."""
    graphs = [recorder.pending_graph for recorder in client.client().recorders] if client.started() else []
    alive = [value for graph in graphs for ref in list(graph.refs) if (value := ref()) is not None]
    return len({id(value) for value in alive if _buffer(value) is None})


def _buffer(value: Any) -> Any:
    """A value's buffer, None before it is set: another thread may be making the value."""
    return getattr(value, "buffer", None)


_live = LiveObjects()


def object_counts(calls: Mapping[str, Call]) -> dict[str, int]:
    """The numbers of tensors and of buffers, made and destroyed."""
    tensors = made() + sum(call.count - call.packed for call in calls.values() if not call.mutated)
    buffers = counted(buffers_made)
    live_tensors, live_buffers = _live.count()
    numbers = (tensors, max(tensors - live_tensors, 0), buffers, max(buffers - live_buffers, 0))
    return dict(zip(_OBJECTS, numbers, strict=True))


def register(calls: Mapping[str, Call]) -> None:
    """Let snapshots include these counters, computed from the live table of `calls`."""
    metrics.register_collector(lambda: operation_counts(calls))
    metrics.register_collector(lambda: object_counts(calls), frozenset(_OBJECTS))
