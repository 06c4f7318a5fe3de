"""Buffers that the user donates: a step's program may write its results into their memory, though tensors still show them.

Buffers that a step overwrites are donated anyway (`dead_leaves` in engine/graph/selection.py). A marked buffer belongs to a tensor that is
still referenced: once a program has taken it over, reading that tensor is an error.
"""

from __future__ import annotations

import weakref

import jax

from xla_core.base.errors import DonatedError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import result_slots
from xla_core.engine.graph.pending_graph import KeptRef, PendingGraph, Value, lose

# By id: a buffer stays marked when its tensor is written to and a program still reads the buffer.
_buffers: weakref.WeakValueDictionary[int, jax.Array] = weakref.WeakValueDictionary()
_values: weakref.WeakSet[Value] = weakref.WeakSet()
_enabled: set[int] = set()


def enable(index: int, on: bool) -> None:
    """Set whether programs of device `index` other than steps may take over marked buffers."""
    if on:
        _enabled.add(index)
    else:
        _enabled.discard(index)


def enabled(index: int) -> bool:
    """Whether programs of device `index` other than steps take over marked buffers."""
    return index in _enabled


def mark(value: Value, donated: bool) -> bool:
    """Mark the buffer of a value for donation, or take the mark off. Returns False if it has none, or others outside hold it."""
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
    """Whether the buffer of a value is marked for donation."""
    return value in _values


def any_marked() -> bool:
    """Whether any buffer is marked."""
    return bool(_buffers)


def marked_leaves(pending_graph: PendingGraph, slots: list[int]) -> tuple[int, ...]:
    """Indices, among the leaves in `slots`, of those that are marked and not shared with the outside."""
    leaves = [slot for slot in slots if type(pending_graph.entries[slot]) is Aval]
    flags = [id(pending_graph.input_data[slot]) in _buffers and type(pending_graph.refs[slot]) is not KeptRef for slot in leaves]
    return tuple(index for index, marked in enumerate(flags) if marked)


def spare_leaves(pending_graph: PendingGraph, slots: list[int], computed: list[int]) -> tuple[int, ...]:
    """Indices, among the leaves in `slots`, of those that are marked and that nothing alive reads once the slots `computed` have values."""
    entries = pending_graph.entries
    done = {*computed, *pending_graph.input_data}
    needed: set[int] = set()
    for slot in reversed(range(len(entries))):
        entry = entries[slot]
        if type(entry) is tuple:
            remaining = [result for result in result_slots(entries, slot) if result not in done]
            if any(result in needed or pending_graph.refs[result]() is not None for result in remaining):
                needed.update(entry[1:])
    leaves = [slot for slot in slots if type(entries[slot]) is Aval]
    return tuple(index for index in marked_leaves(pending_graph, leaves) if leaves[index] not in needed)


def settle() -> None:
    """Find the marked buffers that a program has taken over: using their values raises DonatedError from now on."""
    for value in list(_values) if _values else ():
        if value.buffer is not None and value.buffer.is_deleted():
            mark(value, False)
            text = f"{value.aval} on {value.recorder.device} was marked for donation, and a program has written its results there"
            value.buffer = None
            lose(value, DonatedError(f"{text}: read it before the sync, or leave the mark off"))
