"""State that a step creates and keeps: let its first step be the same program as all later ones.

An optimizer's first step makes its moments with `zeros_like` and updates them in place; later steps find them on the device.
As recorded, these are two programs. Here a filled tensor that was overwritten in place and outlives the step becomes a leaf,
placed where a later step would have placed it, so that one program serves all steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from xla_core.errors import InternalError
from xla_core.ir.aval import Aval
from xla_core.ir.graph import aval_at, renamed_lines
from xla_core.ir.tape import Entry, Tape, Value

Fill = Callable[[Any, Aval, Any], Any]


class Holder(Protocol):
    """A storage: something whose current value changes."""

    value: Value


def note_filled(tape: Tape, holder: Holder, number: Any) -> None:
    """Remember that `holder` was just made by filling with one number."""
    tape.filled.append((weakref.ref(holder), holder.value.slot, number))


def promote_state(tape: Tape, fill: Fill) -> None:
    """Turn filled tensors that became state into leaves; `fill(holder, aval, number)` makes their buffers."""
    promoted: dict[int, tuple[Holder, Any]] = {}
    for reference, slot, number in tape.filled:
        holder: Holder | None = reference()
        if holder is not None and holder.value.tape is tape and holder.value.slot != slot and slot not in tape.feeds:
            promoted[slot] = holder, number
    tape.filled.clear()
    if promoted:
        _rebuild(tape, {slot: fill(holder, _aval(tape, slot), number) for slot, (holder, number) in promoted.items()})


def _aval(tape: Tape, slot: int) -> Aval:
    aval = aval_at(tape.entries, slot)
    if aval is None:
        raise InternalError(f"slot {slot} was noted as a filled tensor and holds {tape.entries[slot]}")
    return aval


def _rebuild(tape: Tape, buffers: dict[int, Any]) -> None:
    """Record the tape again as if `buffers`' slots had been on the device all the time.

    Recording brings leaves, fed numbers and reads of views onto the tape right before the first operation that uses them, in
    the order of its operands; so does this.
    """
    old_entries, old_refs = tape.entries, tape.refs
    old_feeds = {**tape.feeds, **buffers}
    for slot, buffer in buffers.items():
        value: Value | None = old_refs[slot]()
        if value is not None:
            value.buffer = buffer
    reads = set(tape.reads.values())
    used = {operand for entry in old_entries if type(entry) is tuple for operand in entry[1:]}
    entries: list[Entry] = []
    refs: list[weakref.ref[Value]] = []
    feeds: dict[int, Any] = {}
    renamed: dict[int, int] = {}

    def place(old: int) -> None:
        entry = _aval(tape, old) if old in buffers else old_entries[old]
        if type(entry) is tuple:
            for operand in entry[1:]:
                if operand not in renamed:
                    place(operand)
            entry = (entry[0], *[renamed[operand] for operand in entry[1:]])
        new = renamed[old] = len(entries)
        value: Value | None = old_refs[old]()
        if value is not None and value.tape is tape and value.slot == old:
            value.slot = new
        if old in old_feeds:
            feeds[new] = old_feeds[old]
        entries.append(entry)
        refs.append(old_refs[old])

    for old in range(len(old_entries)):
        waits = old in old_feeds or (old in reads and old in used)
        if old not in renamed and not waits:
            place(old)
    for old in old_feeds.keys() - renamed.keys():
        unused: Value | None = old_refs[old]()
        if unused is not None and unused.tape is tape:
            unused.tape = None
    tape.reads = {(renamed[base], spec): renamed[slot] for (base, spec), slot in tape.reads.items() if slot in renamed}
    tape.lines = renamed_lines(tape, renamed)
    tape.entries, tape.refs, tape.feeds = entries, refs, feeds
