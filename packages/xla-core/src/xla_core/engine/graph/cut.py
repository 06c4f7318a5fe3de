"""Copy the program that computes some values out of a pending graph, which stays as it is."""

from __future__ import annotations

from collections.abc import Sequence

from xla_core.engine.graph.graph import Graph, Inputs, inputs_of
from xla_core.engine.graph.pending_graph import BLANK, PendingGraph, Value, computed_buffer
from xla_core.engine.graph.selection import ancestors, extract, renamed_lines
from xla_core.engine.graph.signature import blank


def cut(pending_graph: PendingGraph, values: Sequence[Value]) -> tuple[Graph, Inputs]:
    """The graph with `values` as results, and its inputs as of now; computed values are leaves. Raises the error of a lost value."""
    pending = [value.slot for value in values if value.pending_graph is pending_graph]
    entries, renamed, input_data = extract(pending_graph, ancestors(pending_graph, pending))
    outs = []
    for value in values:
        if value.pending_graph is pending_graph:
            outs.append(renamed[value.slot])
            continue
        outs.append(len(entries))
        if value.slot == BLANK:
            entries.append((blank(value.aval),))
        else:
            input_data[len(entries)] = computed_buffer(value)
            entries.append(value.aval)
    return Graph(tuple(entries), tuple(outs), lines=renamed_lines(pending_graph, renamed)), inputs_of(entries, input_data)
