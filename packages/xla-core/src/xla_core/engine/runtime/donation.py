"""Buffers that the user gives away: a step's program may write its results where they are, though tensors still show them.

What a step overwrites is donated anyway (`dead_leaves` in engine/graph/graph.py). A marked buffer belongs to a tensor that somebody
holds: once it has been taken over, reading that tensor is an error.
"""

from __future__ import annotations

import weakref

import jax

from xla_core.base.errors import DonatedError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import result_slots
from xla_core.engine.graph.pending_graph import KEPT, PendingGraph, Value, lose

# By the ids of buffers: one stays marked when the tensor that showed it is written to, and a program still reads it.
_buffers: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()
_values: weakref.WeakSet[Value] = weakref.WeakSet()
_enabled: set[int] = set()


def enable(index: int, on: bool) -> None:
    """Let programs of device `index` that are no steps take over marked buffers, too, or not."""
    if on:
        _enabled.add(index)
    else:
        _enabled.discard(index)


def enabled(index: int) -> bool:
    """Whether programs of device `index` that are no steps take over marked buffers."""
    return index in _enabled


def mark(value: Value, donated: bool) -> bool:
    """Let the buffer of a value be given away, or not; False if it has none, or one that somebody outside holds as well."""
    if value.buffer is None or value.shared:
        return False
    if donated:
        _buffers[id(value.buffer)] = value.buffer
        _values.add(value)
    else:
        _buffers.pop(id(value.buffer), None)
        _values.discard(value)
    return True


def is_marked(value: Value) -> bool:
    """Whether the buffer of a value is to be given away."""
    return value in _values


def any_marked() -> bool:
    """Whether there is any such buffer."""
    return bool(_buffers)


def marked_leaves(pending_graph: PendingGraph, slots: list[int]) -> tuple[int, ...]:
    """Which of the leaves among `slots`, counted in their order, are marked and held by nobody outside."""
    leaves = [slot for slot in slots if type(pending_graph.entries[slot]) is Aval]
    marked = [id(pending_graph.input_data[slot]) in _buffers and pending_graph.refs[slot] is not KEPT for slot in leaves]
    return tuple(number for number, found in enumerate(marked) if found)


def spare_leaves(pending_graph: PendingGraph, slots: list[int], computed: list[int]) -> tuple[int, ...]:
    """Which of the leaves among `slots`, counted in their order, are marked and read by nothing alive once `computed` are there."""
    entries = pending_graph.entries
    done = {*computed, *pending_graph.input_data}
    needed: set[int] = set()
    for slot in reversed(range(len(entries))):
        entry = entries[slot]
        if type(entry) is tuple:
            rest = [at for at in result_slots(entries, slot) if at not in done]
            if any(at in needed or pending_graph.refs[at]() is not None for at in rest):
                needed.update(entry[1:])
    leaves = [slot for slot in slots if type(entries[slot]) is Aval]
    return tuple(number for number in marked_leaves(pending_graph, leaves) if leaves[number] not in needed)


def settle() -> None:
    """Take note of the marked buffers that a program has taken over: using their values raises DonatedError."""
    for value in list(_values) if _values else ():
        if value.buffer is not None and value.buffer.is_deleted():
            mark(value, False)
            text = f"{value.aval} on {value.recorder.device} was marked for donation, and a program has written its results there"
            value.buffer = None
            lose(value, DonatedError(f"{text}: read it before the sync, or leave the mark off"))
