"""State that a step creates and keeps: make the first step the same program as all later ones.

An optimizer's first step makes its moments with `zeros_like` and updates them in place; later steps find them on the device.
As recorded, these are two programs. Here a filled tensor that was overwritten in place and outlives the step becomes a leaf,
placed where a later step would have placed it, so that one program serves all steps.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from xla_core.base.errors import InternalError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import Entry, aval_at, result_slots
from xla_core.engine.graph.pending_graph import PendingGraph, Value
from xla_core.engine.graph.selection import renamed_lines

Fill = Callable[[Any, Aval, Any], Any]


class AnyStorage(Protocol):
    """A storage: something whose current value changes."""

    value: Value


def note_filled(pending_graph: PendingGraph, holder: AnyStorage, number: Any) -> None:
    """Note that `holder` was just filled with one number."""
    pending_graph.filled.append((weakref.ref(holder), holder.value.slot, number))


def promote_state(pending_graph: PendingGraph, fill: Fill) -> None:
    """Turn filled tensors that became state into leaves; `fill(holder, aval, number)` makes their buffers."""
    # State: a storage that is alive, was written to since it was filled, and whose filled value no read has computed.
    promoted: dict[int, tuple[AnyStorage, Any]] = {}
    for reference, slot, number in pending_graph.filled:
        holder: AnyStorage | None = reference()
        if (
            holder is not None
            and holder.value.pending_graph is pending_graph
            and holder.value.slot != slot
            and slot not in pending_graph.input_data
        ):
            promoted[slot] = holder, number
    pending_graph.filled.clear()
    if promoted:
        _rebuild(pending_graph, {slot: fill(holder, _aval(pending_graph, slot), number) for slot, (holder, number) in promoted.items()})


def _aval(pending_graph: PendingGraph, slot: int) -> Aval:
    aval = aval_at(pending_graph.entries, slot)
    if aval is None:
        raise InternalError(f"slot {slot} was noted as a filled tensor and holds {pending_graph.entries[slot]}")
    return aval


def _rebuild(pending_graph: PendingGraph, buffers: dict[int, Any]) -> None:
    """Record the pending graph again as if `buffers`' slots had been on the device all the time.

    Recording brings leaves, scalar inputs and reads of views onto the pending graph right before the first operation that uses them, in
    the order of its operands; so does this. An entry that came earlier, as a value that was read or a tensor's, stays.
    """
    old_entries, old_refs = pending_graph.entries, pending_graph.refs
    old_input_data = {**pending_graph.input_data, **buffers}
    for slot, buffer in buffers.items():
        # The filled value itself may still be alive, beside the value that it became.
        value: Value | None = old_refs[slot]()
        if value is not None:
            value.buffer = buffer
    reads = set(pending_graph.reads.values())
    used = {operand for entry in old_entries if type(entry) is tuple for operand in entry[1:]}
    # Several results stay behind their operation, also those that a read has made leaves.
    operations = [slot for slot, entry in enumerate(old_entries) if type(entry) is tuple]
    beside = {result for slot in operations for result in result_slots(old_entries, slot) if result != slot}
    brought = _brought(old_entries, operations, reads | (old_input_data.keys() - beside))
    # A read that a tensor holds stays, even if only a filling used it.
    still_used = {operand for slot in operations if slot not in buffers for operand in _operands(old_entries[slot])}
    brought -= {slot for slot in reads - still_used if old_refs[slot]() is not None}
    entries: list[Entry] = []
    refs: list[weakref.ref[Value]] = []
    input_data: dict[int, Any] = {}
    renamed: dict[int, int] = {}

    def place(old: int) -> None:
        entry = _aval(pending_graph, old) if old in buffers else old_entries[old]
        if type(entry) is tuple:
            for operand in entry[1:]:
                if operand not in renamed:
                    place(operand)
            entry = (entry[0], *[renamed[operand] for operand in entry[1:]])
        new = renamed[old] = len(entries)
        value: Value | None = old_refs[old]()
        if value is not None and value.pending_graph is pending_graph and value.slot == old:
            value.slot = new
        if old in old_input_data:
            input_data[new] = old_input_data[old]
        entries.append(entry)
        refs.append(old_refs[old])

    for old in range(len(old_entries)):
        # These come with their first user. A read that nothing uses has none: it stays where it is.
        waits = old in buffers or old in brought or (old in old_input_data and old not in beside and old not in used)
        if old not in renamed and not waits:
            place(old)
    for old in old_input_data.keys() - renamed.keys():
        unused: Value | None = old_refs[old]()
        if unused is not None and unused.pending_graph is pending_graph:
            unused.pending_graph = None
    pending_graph.reads = {(renamed[base], spec): renamed[slot] for (base, spec), slot in pending_graph.reads.items() if slot in renamed}
    pending_graph.lines = renamed_lines(pending_graph, renamed)
    pending_graph.entries, pending_graph.refs, pending_graph.input_data = entries, refs, input_data


def _brought(entries: Sequence[Entry], operations: Sequence[int], may: Set[int]) -> set[int]:
    """The slots among `may` that came with the first operation that uses them: right before it, in the order of its operands."""
    first_user: dict[int, int] = {}
    for slot in operations:
        for operand in _operands(entries[slot]):
            first_user.setdefault(operand, slot)
    brought: set[int] = set()
    for slot in operations:
        first = slot
        while first - 1 in may and first <= first_user.get(first - 1, -1) <= slot:
            first -= 1
        positions = _order(entries, slot, first)
        begin = slot
        while begin > first and positions.get(begin - 1, slot) < positions.get(begin, slot):
            begin -= 1
        brought.update(range(begin, slot))
    return brought


def _operands(entry: Entry) -> tuple[int, ...]:
    return entry[1:] if type(entry) is tuple else ()


def _order(entries: Sequence[Entry], slot: int, first: int) -> dict[int, int]:
    """The position of each slot from `first` on in the order in which recording would bring all of them for the operation at `slot`."""
    positions: dict[int, int] = {}

    def bring(user: int) -> None:
        for operand in _operands(entries[user]):
            if operand >= first and operand not in positions:
                bring(operand)
                positions[operand] = len(positions)

    bring(slot)
    return positions
