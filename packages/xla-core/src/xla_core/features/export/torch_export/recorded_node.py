"""Records nodes without a row in the op table by the lazy engine, as part of a program's graph.

These are branches and loops, whose modules become bodies; composite operations with a handler for the device, such as attention; and
operations with a Python kernel for the device, over recorded operations or a JAX function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from xla_core.base.errors import UnsupportedOperationError, internal
from xla_core.base.private_torch import HigherOrderOperator, higher_order_function, tree_flatten, tree_map, tree_unflatten
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import SEED, aval_at
from xla_core.engine.graph.pending_graph import BLANK, NOBODY, PendingGraph, Value, computed_buffer
from xla_core.engine.graph.signature import blank
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.sync import forbid_reads
from xla_core.engine.tracing.bodies import Body, Feed, HostNumber, Recording, recording
from xla_core.engine.tracing.tokens import stand_in_by
from xla_core.features.export.torch_export.device_interpreter import XLAExportInterpreter


@dataclass(frozen=True, slots=True)
class ValueSlot:
    """A tensor of a program: its slot in the graph, and its aval."""

    number: int
    aval: Aval


def leaf(graph: PendingGraph, aval: Aval, source: Any) -> ValueSlot:
    """Add a leaf to the graph. source: where its value comes from."""
    slot = len(graph.entries)
    graph.entries.append(aval)
    graph.refs.append(NOBODY)
    graph.input_data[slot] = source
    return ValueSlot(slot, aval)


def slot_at(graph: PendingGraph, slot: int) -> ValueSlot:
    """The tensor at a slot. Raises InternalError if there is none."""
    aval = aval_at(graph.entries, slot)
    internal(aval is not None, lambda: f"slot {slot} holds no tensor")
    return ValueSlot(slot, cast(Aval, aval))


def record_node(
    graph: PendingGraph, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], custom_calls: frozenset[str] | set[str]
) -> Any:
    """Record a node, whose tensors are slots of the graph. Returns its results, with slots for tensors.

    Raises GraphBreakError if it needs a value of a tensor, UnsupportedOperationError for collectives.
    """
    device = current_recorder().device
    operands: list[ValueSlot] = []
    with _recording(str(target)) as part:

        def on_device(item: Any) -> Any:
            if isinstance(item, ValueSlot):
                operands.append(item)
                return part.stand_in(item.aval)
            if isinstance(item, torch.fx.GraphModule):  # body of a branch, a loop, a region
                return XLAExportInterpreter(item, device, custom_calls).run
            return device if isinstance(item, torch.device) else item

        placed, named = tree_map(on_device, (args, kwargs))
        function = higher_order_function(target) if isinstance(target, HigherOrderOperator) else target
        results, nesting = tree_flatten(function(*placed, **named))
        numbers = [part.slot_of(item) for item in results if isinstance(item, torch.Tensor)]
        slots = iter(_spliced(graph, part.body(numbers), operands))
    return tree_unflatten([next(slots) if isinstance(item, torch.Tensor) else item for item in results], nesting)


@contextmanager
def _recording(name: str) -> Iterator[Recording]:
    """Open a recording that draws nothing from the device's random state. Forbids reads, whose values would become constants."""
    recorder = current_recorder()
    with recorder.lock, torch.no_grad():
        seed = recorder.seed
        try:
            with recording(recorder, name) as part:
                reason = "the program branches on data, or runs an operation without XLA lowering on the CPU"
                part.entered.callback(forbid_reads, forbid_reads(f"exporting needs a value while tracing {name}: {reason}"))
                part.entered.callback(stand_in_by, stand_in_by(_refuse_collective))
                yield part
        finally:
            recorder.seed = seed


def _refuse_collective(token: Any) -> Any:
    raise UnsupportedOperationError("a program with collectives cannot be exported: it runs among the replicas of a job only")


def _spliced(graph: PendingGraph, body: Body, operands: Sequence[ValueSlot]) -> list[ValueSlot]:
    """Append the operations of a body to a graph, and return its results."""
    captured_slots = [_held(graph, captured) for captured in body.held]
    seeds = [graph.add_scalar(SEED, seed) for seed in body.seeds]
    lists = {Feed.GIVEN: [operand.number for operand in operands], Feed.HELD: captured_slots, Feed.SEED: seeds}
    feeds = iter(body.feeds)
    numbers: list[int] = []
    results: Iterator[int] = iter(())
    for entry in body.graph.entries:
        if entry is None:
            numbers.append(next(results))
        elif type(entry) is tuple:
            signature, *taken = entry
            first = graph.append(signature, [numbers[slot] for slot in taken])
            results = iter(range(first, first + len(signature.outs)))
            numbers.append(first)
        else:
            feed, index = next(feeds)
            numbers.append(lists[feed][index])
    return [slot_at(graph, numbers[slot]) for slot in body.graph.outs]


def _held(graph: PendingGraph, captured: Value | HostNumber) -> int:
    if isinstance(captured, HostNumber):
        return graph.add_scalar(captured.kind, captured.number)
    return (
        graph.append(blank(captured.aval), []) if captured.slot == BLANK else leaf(graph, captured.aval, computed_buffer(captured)).number
    )
