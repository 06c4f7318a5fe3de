"""The printed form of a graph: one line an entry, the same text in every process for the same program."""

from __future__ import annotations

import hashlib
from typing import Any

from xla_core.engine.graph.entries import ScalarInput
from xla_core.engine.graph.graph import Graph, aval_at


def operation_text(entry: tuple[Any, ...]) -> str:
    """`aten.add.Tensor(%1, %2, alpha=2)` for one recorded operation."""
    signature = entry[0]
    names = iter([f"%{slot}" for slot in entry[1:]])
    shown = [_argument(argument, names) for argument in signature.args]
    shown += [f"{name}={_argument(argument, names)}" for name, argument in signature.kwargs.items()]
    shown += [f"seed={name}" for name in names]
    return f"{signature.name}({', '.join(shown)})"


def _argument(argument: Any, names: Any) -> str:
    if isinstance(argument, (list, tuple)):
        return f"[{', '.join(_argument(item, names) for item in argument)}]"
    return next(names) if repr(argument) == "%" else repr(argument)


def graph_text(graph: Graph, lines: bool = True) -> str:
    """The program, for people and golden files: `%3 = aten.add.Tensor(%1, %2) : f32[8,4]  # train.py:17`."""
    rows = []
    for slot, entry in enumerate(graph.entries):
        if entry is None:
            rows.append(f"%{slot} = result : {aval_at(graph.entries, slot)}")
        elif type(entry) is tuple:
            outs = entry[0].outs
            kind = str(outs[0]) if len(outs) == 1 else f"{len(outs)} results"
            line = graph.line(slot) if lines else None
            where = f"  # {line}" if line else ""
            rows.append(f"%{slot} = {operation_text(entry)} : {kind}{where}")
        elif isinstance(entry, ScalarInput):
            rows.append(f"%{slot} = {'constant' if entry.fixed else 'number'} : {entry.aval or entry.kind.value}")
        else:
            rows.append(f"%{slot} = input : {entry}")
    rows.append(f"return {', '.join(f'%{slot}' for slot in graph.outs)}")
    return "\n".join(rows)


def graph_hash(graph: Graph, *settings: Any) -> str:
    """A hex digest of the program under `settings`, the same in every process (source lines do not count)."""
    exact = "\n".join(entry[0].text() for entry in graph.entries if type(entry) is tuple)
    text = f"{graph_text(graph, lines=False)}\ndead {graph.dead}\n{exact}\n{settings}"
    return hashlib.sha256(text.encode()).hexdigest()
