"""Find the ancestors and dependants of slots in a pending graph, its live values and its dead leaves; drop entries from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import Entry, aval_at, operation_at, result_slots
from xla_core.engine.graph.pending_graph import KeptRef, PendingGraph, Value, buffers_made


def ancestors(pending_graph: PendingGraph, slots: Iterable[int]) -> list[int]:
    """The slots of all leaves, scalar inputs and operations that `slots` need, ascending."""
    entries = pending_graph.entries
    seen: set[int] = set()
    stack = [operation_at(entries, slot) for slot in slots]
    while stack:
        slot = stack.pop()
        if slot in seen:
            continue
        seen.add(slot)
        entry = entries[slot]
        if type(entry) is tuple:
            for operand in entry[1:]:
                stack.append(operation_at(entries, operand) if entries[operand] is None else operand)
    return sorted(seen)


def dependants(pending_graph: PendingGraph, slots: Iterable[int]) -> set[int]:
    """`slots`, of operations or leaves, and the slots of everything that is computed from them, results included."""
    bad = set(slots)
    for slot, entry in enumerate(pending_graph.entries):
        if type(entry) is tuple:
            if slot in bad or not bad.isdisjoint(entry[1:]):
                count = len(entry[0].outs)
                bad.update(range(slot, slot + (1 if count == 1 else 1 + count)))
    return bad


def extract(pending_graph: PendingGraph, slots: list[int]) -> tuple[list[Entry], dict[int, int], dict[int, Any]]:
    """Copy `slots` (closed under ancestors, ascending) to a new numbering: entries, old slot → new slot, input data."""
    if len(slots) == len(pending_graph.entries):
        return list(pending_graph.entries), dict(zip(slots, slots, strict=True)), dict(pending_graph.input_data)
    entries: list[Entry] = []
    renamed: dict[int, int] = {}
    input_data: dict[int, Any] = {}
    for slot in slots:
        if slot in renamed:
            continue
        entry = pending_graph.entries[slot]
        block = [slot]
        if type(entry) is tuple and len(entry[0].outs) > 1:
            # Results stay right behind their operation; one that a read has computed is a leaf among them.
            block = list(range(slot, slot + len(entry[0].outs) + 1))
        for old in block:
            new = renamed[old] = len(entries)
            copied = pending_graph.entries[old]
            if type(copied) is tuple:
                copied = (copied[0], *[renamed[operand] for operand in copied[1:]])
            elif copied is not None:
                input_data[new] = pending_graph.input_data[old]
            entries.append(copied)
    return entries, renamed, input_data


def renamed_lines(pending_graph: PendingGraph, renamed: Mapping[int, int]) -> dict[int, str]:
    """The user's lines that were captured, by new slot."""
    return {renamed[slot]: line for slot, line in pending_graph.lines.items() if slot in renamed}


def live_slots(pending_graph: PendingGraph) -> list[int]:
    """The slots of live pending values, ascending."""
    input_data = pending_graph.input_data
    live = [slot for slot, reference in enumerate(pending_graph.refs) if reference() is not None]
    return [slot for slot in live if slot not in input_data]


def live_values(pending_graph: PendingGraph) -> list[Value]:
    """The live pending values, in the order of their slots; the list keeps them alive."""
    return [value for slot in live_slots(pending_graph) if (value := pending_graph.refs[slot]()) is not None]


def dead_leaves(pending_graph: PendingGraph) -> tuple[int, ...]:
    """Indices of the leaves whose buffers only the pending graph holds, without small ones, whose memory is not worth another program.

    So the program that reads a prompt, which the user still holds, is the same as for the tokens that follow it.
    """
    entries, refs = pending_graph.entries, pending_graph.refs
    leaves: list[Any] = [slot for slot in pending_graph.input_data if type(entries[slot]) is Aval]
    unheld = [(reference := refs[slot])() is None and type(reference) is not KeptRef for slot in leaves]
    return tuple([index for index, slot in enumerate(leaves) if unheld[index] and not entries[slot].small])


def results_of_side_effects(pending_graph: PendingGraph, slots: Iterable[int]) -> list[int]:
    """The results that are still pending of the operations among `slots` that must not run twice, ascending."""
    results = []
    for slot in slots:
        entry = pending_graph.entries[slot]
        if type(entry) is tuple and entry[0].has_side_effects:
            results.extend([result for result in result_slots(pending_graph.entries, slot) if result not in pending_graph.input_data])
    return results


def wanted_outside(pending_graph: PendingGraph, slots: Iterable[int]) -> set[int]:
    """The pending results among `slots` (closed under ancestors) that other operations, needed for live values, read.

    A loop that reads a value of the last turn while the next turn is pending would otherwise carry all turns along: nobody holds the
    state of the last turn, and each read would compute it anew, in a longer program.
    """
    inside = set(slots)
    outside = [slot for slot in ancestors(pending_graph, live_slots(pending_graph)) if slot not in inside]
    read: set[int] = set()
    for slot in outside:
        entry = pending_graph.entries[slot]
        if type(entry) is tuple:
            read.update(entry[1:])
    return {slot for slot in read if slot not in pending_graph.input_data and operation_at(pending_graph.entries, slot) in inside}


def store_results(pending_graph: PendingGraph, slots: list[int], buffers: list[Any]) -> None:
    """Turn pending results that were computed into leaves; live values get their buffers."""
    for slot, buffer in zip(slots, buffers, strict=True):
        value: Value | None = pending_graph.refs[slot]()
        if value is not None:
            value.buffer = buffer
            next(buffers_made)
        # Also for dead values: pending operations read them.
        pending_graph.entries[slot] = aval_at(pending_graph.entries, slot)
        pending_graph.input_data[slot] = buffer
    # In slot order: the arguments of a program, and the indices of dead leaves, follow the dictionary.
    pending_graph.input_data = dict(sorted(pending_graph.input_data.items()))


def shrink(pending_graph: PendingGraph, slots: list[int]) -> None:
    """Drop from `pending_graph` all but `slots` (closed under ancestors, ascending); live values move to their new slots."""
    entries, renamed, input_data = extract(pending_graph, slots)
    refs = [pending_graph.refs[old] for old in renamed]
    for old, new in renamed.items():
        value: Value | None = pending_graph.refs[old]()
        if value is not None and value.pending_graph is pending_graph and value.slot == old:
            value.slot = new
    reads = {
        (renamed[base], spec): renamed[slot] for (base, spec), slot in pending_graph.reads.items() if base in renamed and slot in renamed
    }
    lines = renamed_lines(pending_graph, renamed)
    pending_graph.filled = [(holder, renamed[slot], number) for holder, slot, number in pending_graph.filled if slot in renamed]
    dropped = [reference() for slot, reference in enumerate(pending_graph.refs) if slot not in renamed]
    for value in dropped:
        if value is not None and value.pending_graph is pending_graph:
            value.pending_graph = None  # a leaf that no pending operation reads
    pending_graph.entries, pending_graph.refs, pending_graph.input_data, pending_graph.reads, pending_graph.lines = (
        entries,
        refs,
        input_data,
        reads,
        lines,
    )


def set_aside(pending_graph: PendingGraph) -> None:
    """Let what is recorded from now on be the program that it would be without the operations that are pending, once these are dead.

    The values of leaves enter anew, in the order in which later operations use them.
    """
    pending_graph.partly_run = True
    for slot in pending_graph.input_data:
        value = pending_graph.refs[slot]()
        if value is not None and value.pending_graph is pending_graph and value.slot == slot:
            value.pending_graph, value.slot = None, -1
            pending_graph.refs[slot] = KeptRef(value)


def keep_live(pending_graph: PendingGraph) -> None:
    """Drop the entries that no live value needs."""
    shrink(pending_graph, ancestors(pending_graph, [operation_at(pending_graph.entries, slot) for slot in live_slots(pending_graph)]))
