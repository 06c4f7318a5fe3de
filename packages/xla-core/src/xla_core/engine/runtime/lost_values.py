"""Values that no program will compute any more: using one raises the error that made it so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from xla_core.base.errors import ExecutionError, XlaError
from xla_core.engine.graph.entries import operation_at
from xla_core.engine.graph.pending_graph import NOBODY, PendingGraph, Value, lose
from xla_core.engine.graph.selection import dependants

_NAMED = 10  # values in an error


def give_up(pending_graph: PendingGraph, slots: Iterable[int], reason: XlaError) -> list[Value]:
    """Lose the values that depend on `slots`: using them raises `reason`. Returns those that are still referenced."""
    bad = dependants(pending_graph, slots)
    values = [value for slot in sorted(bad) if (value := pending_graph.refs[slot]()) is not None and slot not in pending_graph.input_data]
    for value in values:
        # No longer live: later programs do not compute it.
        pending_graph.refs[value.slot] = NOBODY
        lose(value, reason)
    return values


def lost_inputs(pending_graph: PendingGraph, taken: list[int], error: ExecutionError) -> ExecutionError:
    """The error of an execution that failed after it took over the buffers of leaves `taken`: names the values that are lost."""
    values = {
        id(value): value for reference in pending_graph.refs if (value := reference()) is not None and value.pending_graph is pending_graph
    }
    # Before `give_up` takes their slots.
    operations = {key: operation_at(pending_graph.entries, value.slot) for key, value in values.items()}
    entries = pending_graph.entries
    counts = Counter(f"{value.aval}{_made_at(entries[operations[id(value)]])}" for value in give_up(pending_graph, taken, error))
    named = ", ".join(f"{count} of {text}" if count > 1 else text for text, count in counts.most_common(_NAMED))
    return ExecutionError(f"{error}. It had taken over its inputs, so that these are lost: {named or 'none that is still held'}")


def _made_at(entry: Any) -> str:
    line = entry[0].line if type(entry) is tuple else None
    return f" made at {line}" if line else ""
