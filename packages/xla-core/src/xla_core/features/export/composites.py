"""Turns the operations between marks (features/export/markers.py) into one operation: a composite with its decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarInput
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.pending_graph import PendingGraph
from xla_core.engine.graph.selection import ancestors, extract
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.graph.text import graph_hash
from xla_core.engine.tracing.bodies import Body, body_of
from xla_core.engine.tracing.operations import results_of
from xla_core.engine.tracing.origins import Argument
from xla_core.features.export.markers import deserialize_composite_attr
from xla_core.ops.table import Context


@dataclass(slots=True)
class _Use:
    """A use of a composite. inputs, outputs: slots of its marks by position."""

    name: str
    inputs: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    attr: str | None = None


def with_composites(graph: Graph) -> Graph:
    """Replace the operations between the marks of each composite by one operation. Leaves and results stay the same, in the same order.

    Raises UnsupportedOperationError for a composite with an input that was marked after its first output.
    """
    while (use := _next(graph)) is not None:
        graph = _replaced(graph, use)
    return graph


def _next(graph: Graph) -> _Use | None:
    """The use with inputs and outputs that ends first, so that nested composites come before outer ones."""
    uses: dict[tuple[str, str], _Use] = {}
    for slot, (signature, *_) in graph.recorded():
        if signature.target == "xla::mark_tensor":
            arguments: list[Any] = [*signature.args, *signature.kwargs.values(), None]
            name, position, use_id, is_input = arguments[1:5]
            use = uses.setdefault((name, use_id), _Use(name))
            (use.inputs if is_input else use.outputs)[position] = slot
            use.attr = arguments[5]
    return min((use for use in uses.values() if use.inputs and use.outputs), key=lambda use: max(use.outputs.values()), default=None)


def _operand(graph: Graph, mark: int) -> int:
    """The slot of the value that a mark marks."""
    return int(cast(tuple[Any, ...], graph.entries[mark])[1])


def _replaced(graph: Graph, use: _Use) -> Graph:
    body, operands = _between(graph, use)
    first = min(use.outputs.values())
    if any(operand >= first for operand in operands):
        raise UnsupportedOperationError(f"composite {use.name!r} has an input that is marked after its first output: mark the inputs first")
    marks = [use.outputs[position] for position in sorted(use.outputs)]
    signature = _signature(use, body, len(operands), tuple(cast(Aval, graph.parts.avals[mark]) for mark in marks))
    entries: list[Any] = []
    renamed: dict[int, int] = {}
    for slot, entry in enumerate(graph.entries):
        if slot == first:
            begin = len(entries) + (len(marks) > 1)
            renamed.update({mark: begin + position for position, mark in enumerate(marks)})
            entries.append((signature, *[renamed[operand] for operand in operands]))
            entries.extend([None] * len(marks) if len(marks) > 1 else [])
        if slot not in use.outputs.values():
            renamed[slot] = len(entries)
            entries.append((entry[0], *[renamed[operand] for operand in entry[1:]]) if type(entry) is tuple else entry)
    return needed(entries, [renamed[slot] for slot in graph.outs])


def _between(graph: Graph, use: _Use) -> tuple[Body, list[int]]:
    """The body of a composite, and the slots of its operands: marked inputs, and other leaves of the program that it uses."""
    cut = PendingGraph()
    cut.entries = list(graph.entries)
    for mark in use.inputs.values():
        cut.entries[mark] = graph.parts.avals[mark]
    results = [_operand(graph, use.outputs[position]) for position in sorted(use.outputs)]
    leaves = [slot for slot in ancestors(cut, results) if isinstance(cut.entries[slot], (Aval, ScalarInput))]
    marked = [use.inputs[position] for position in sorted(use.inputs) if use.inputs[position] in leaves]
    order = [*marked, *[slot for slot in leaves if slot not in marked]]
    cut.input_data = {slot: Argument(order.index(slot)) for slot in leaves}
    return body_of(cut, results), [_operand(graph, slot) if slot in marked else slot for slot in order]


def _signature(use: _Use, body: Body, operands: int, outs: tuple[Aval, ...]) -> Signature:
    attributes = deserialize_composite_attr(use.attr) or {}

    def lower(context: Context, *arguments: Any) -> list[Any]:
        def decomposition(*arrays: Any, **_: Any) -> tuple[Any, ...]:
            return tuple(results_of(context, body, arrays, (), (), None))

        return list(jax.lax.composite(decomposition, use.name)(*arguments[:operands], **attributes))

    text = graph_hash(body.graph)[:32]
    return Signature("xla.composite", lower, (*(PLACEHOLDER,) * operands, use.name, use.attr, text), {}, outs, has_bodies=True)


def needed(entries: Sequence[Any], outs: Sequence[int]) -> Graph:
    """The graph without operations that no result needs. All leaves stay."""
    pending_graph = PendingGraph()
    pending_graph.entries = list(entries)
    # A computed result in the block of a multi-result operation is a leaf, too.
    pending_graph.input_data = {slot: None for slot, entry in enumerate(entries) if isinstance(entry, (Aval, ScalarInput))}
    kept = sorted({*ancestors(pending_graph, outs), *pending_graph.input_data})
    chosen, renamed, _ = extract(pending_graph, kept)
    return Graph(tuple(chosen), tuple(renamed[slot] for slot in outs))
