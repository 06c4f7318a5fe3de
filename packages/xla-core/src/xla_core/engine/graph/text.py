"""The printed form of a graph: one line for each entry, the same text in every process for the same program."""

from __future__ import annotations

import hashlib
from typing import Any

from xla_core.engine.graph.entries import ScalarInput
from xla_core.engine.graph.graph import Graph, own
from xla_core.engine.graph.view import GraphView


def graph_text(graph: GraphView, lines: bool = True) -> str:
    """The program, for people and golden files: `%3 = aten.add.Tensor(%1, %2) : f32[8,4]  # train.py:17`."""
    graph = own(graph)
    rows = []
    for slot, (entry, aval) in enumerate(zip(graph.entries, graph.parts.avals, strict=True)):
        shape = "None" if aval is None else aval.text
        if entry is None:
            rows.append(f"%{slot} = result : {shape}")
        elif isinstance(entry, ScalarInput):
            rows.append(f"%{slot} = {'constant' if entry.fixed else 'number'} : {entry.aval or entry.kind.value}")
        elif type(entry) is tuple:
            count = len(entry[0].outs)
            line = graph.line(slot) if lines else None
            where = f"  # {line}" if line else ""
            rows.append(f"%{slot} = {entry[0].call_text(entry[1:])} : {shape if count == 1 else f'{count} results'}{where}")
        else:
            rows.append(f"%{slot} = input : {shape}")
    rows.append(f"return {', '.join(f'%{slot}' for slot in graph.outs)}")
    return "\n".join(rows)


def graph_hash(graph: Graph, *settings: Any) -> str:
    """A hex digest of the program under `settings`, the same in every process (source lines do not count)."""
    exact = "\n".join([signature.text() for signature in graph.parts.signatures])
    text = f"{graph_text(graph, lines=False)}\ndead {graph.dead}\n{exact}\n{settings}"
    return hashlib.sha256(text.encode()).hexdigest()
