"""Verify graphs: before a program is built if `XLA_CORE_VERIFY` is at least 1, and in the tests of the state machine."""

from __future__ import annotations

from typing import Any

from xla_core.base.errors import internal
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarKind
from xla_core.engine.graph.graph import Graph, Inputs, recorded_at
from xla_core.engine.graph.signature import PLACEHOLDER
from xla_core.engine.placement.sharding import stored_shape


def verify(graph: Graph, inputs: Inputs) -> None:
    """Raise InternalError, which names the slot and the broken rule, unless `graph` and `inputs` are legal."""
    verify_structure(graph)
    leaves = graph.parts.leaves
    internal(len(leaves) == len(inputs.buffers), lambda: f"{len(leaves)} leaves get {len(inputs.buffers)} buffers")
    for index, (aval, buffer) in enumerate(zip(leaves, inputs.buffers, strict=True)):
        fits = buffer is not None and _fits(aval, buffer)
        internal(fits, lambda index=index, aval=aval, buffer=buffer: f"leaf {index} is {aval}, gets {_dtype_and_shape(buffer)}")  # type: ignore[misc]
    _verify_feeds(graph, inputs)


def _fits(aval: Aval, buffer: Any) -> bool:
    shape = tuple(buffer.shape)
    stored = shape[1:] == aval.shape if aval.manual else shape == stored_shape(aval.shape, getattr(buffer, "sharding", None))
    return stored and bool(buffer.dtype == aval.physical)


def verify_structure(graph: Graph) -> None:
    """Raise InternalError, which names the slot and the broken rule, unless the entries and results of `graph` are legal."""
    results = 0
    for slot, entry in enumerate(graph.entries):
        if type(entry) is tuple:
            _verify_operation(graph, slot)
            results = len(entry[0].outs) if len(entry[0].outs) > 1 else 0
        elif results:
            results -= 1
        else:
            internal(entry is not None, lambda slot=slot: f"slot {slot} is a result of no operation")  # type: ignore[misc]
    for out in graph.outs:
        internal(0 <= out < len(graph.entries), lambda out=out: f"result slot {out} is not in the graph")  # type: ignore[misc]
    leaves = sum(type(entry) is Aval for entry in graph.entries)
    internal(set(graph.dead) <= set(range(leaves)), lambda: f"dead leaves {graph.dead} of {leaves}")


def _dtype_and_shape(buffer: object) -> str:
    return f"{getattr(buffer, 'dtype', type(buffer).__name__)}{list(getattr(buffer, 'shape', ()))}"


def _verify_feeds(graph: Graph, inputs: Inputs) -> None:
    counts = {
        (ScalarKind.FLOAT, False): len(inputs.floats),
        (ScalarKind.FLOAT, True): len(inputs.fixed_floats),
        (ScalarKind.INT, False): len(inputs.ints),
        (ScalarKind.INT, True): len(inputs.fixed_ints),
        (ScalarKind.SEED, False): len(inputs.seeds),
    }
    for (kind, fixed), count in counts.items():
        expected = len(graph.numbers_of(kind, fixed))
        internal(expected == count, lambda kind=kind, expected=expected, count=count: f"{expected} numbers of {kind} get {count}")  # type: ignore[misc]


def _verify_operation(graph: Graph, slot: int) -> None:
    signature, *operands = recorded_at(graph.entries, slot)
    internal(all(0 <= operand < slot for operand in operands), lambda: f"slot {slot} ({signature.name}) reads a later slot: {operands}")
    placeholders = _count_placeholders(signature.args) + _count_placeholders(list(signature.kwargs.values())) + signature.random
    internal(
        placeholders == len(operands), lambda: f"slot {slot} ({signature.name}) has {placeholders} places for {len(operands)} operands"
    )


def _count_placeholders(arguments: object) -> int:
    if isinstance(arguments, (list, tuple)):
        return sum(_count_placeholders(argument) for argument in arguments)
    return int(arguments is PLACEHOLDER)
