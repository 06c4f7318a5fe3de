"""Counters that recording does not pay for: worked out when somebody asks."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from itertools import compress, repeat
from operator import is_

from xla_core import metrics
from xla_core.frontend.encode import Call
from xla_core.frontend.tensor import XLATensor, made
from xla_core.ir.pending_graph import Value, buffers_made, counted

_OBJECTS = ("CreateXlaTensor", "DestroyXlaTensor", "CreateDataHandles", "DestroyDataHandles")


def operation_counts(calls: Mapping[str, Call]) -> dict[str, int]:
    """`xla::<op>`: in-place and out= forms count under the out-of-place name."""
    counts: dict[str, int] = {}
    for call in calls.values():
        name = f"xla::{call.functional._schema.name.partition('::')[2]}"
        counts[name] = counts.get(name, 0) + call.count
    return counts


def object_counts(calls: Mapping[str, Call]) -> dict[str, int]:
    """Tensors and buffers made and gone. What is alive is found by asking the garbage collector, so nothing is paid for each."""
    tensors = made() + sum(call.count - call.packed for call in calls.values() if not call.mutated)
    buffers = counted(buffers_made)
    things = gc.get_objects()  # a million of them in a large program: no Python code for each
    kinds = list(map(type, things))
    live_tensors = kinds.count(XLATensor)
    live_buffers = sum(getattr(value, "buffer", None) is not None for value in compress(things, map(is_, kinds, repeat(Value))))
    numbers = (tensors, max(tensors - live_tensors, 0), buffers, max(buffers - live_buffers, 0))
    return dict(zip(_OBJECTS, numbers, strict=True))


def register(calls: Mapping[str, Call]) -> None:
    """Let snapshots include these counters, computed from the live table of `calls`."""
    metrics.register_collector(lambda: operation_counts(calls))
    metrics.register_collector(lambda: object_counts(calls), frozenset(_OBJECTS))
