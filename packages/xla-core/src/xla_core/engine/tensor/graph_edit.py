"""Edits of a program: replace, insert or remove an operation, with shapes and dtypes inferred as when it is recorded.

Programs never change: each edit makes a new one. Slots before the edited operation stay what they are, so that a pass may go through
the operations from the last to the first and edit them on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core.base.errors import GraphEditError
from xla_core.base.private_torch import tree_flatten, tree_leaves, tree_map
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import Entry, ScalarInput, ScalarKind, result_slots
from xla_core.engine.graph.graph import Graph, own
from xla_core.engine.graph.pending_graph import blank_value
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.graph.view import GraphView, Operand, Operation
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.tensor.infer import PLACEMENT, abstract_result, result_aval
from xla_core.engine.tensor.schema import dotted_name
from xla_core.engine.tensor.tensor import wrap
from xla_core.ops.table import TABLE, OpSpec, overload_named


def replace(graph: GraphView, operation: Operation, target: str, *args: Any, **kwargs: Any) -> Graph:
    """`graph` with `target(*args, **kwargs)` in the place of an operation, whose users get the new results.

    target: as `OpSpec.name`, `aten::addmm` for one. args, kwargs: as its schema has them; operands of the graph stand for tensors and
        for numbers that enter the program, all else is a constant of it.

    A random operation that replaces another takes over its random input. Raises GraphEditError for results of other shapes or dtypes,
    for operations with side effects, and for operands that are computed later; RegistrationError for a target without a lowering;
    what torch raises for the arguments.
    """
    graph = own(graph)
    old = _entry(graph, operation)[0]
    signature, slots = _call(graph, operation, target, args, kwargs)
    if signature.inferred not in (old.outs, old.inferred):
        raise GraphEditError(f"{target} gives {_shown(signature.inferred)}, {operation.text} gives {_shown(old.outs)}")
    signature.outs = old.outs  # in-place forms write results in the dtype of their argument
    if signature.random:
        if not old.random:
            raise GraphEditError(f"{target} draws random numbers and can only replace an operation that does, not {operation.text}")
        slots.append(operation.operands[-1])
    if old.has_side_effects:
        raise _has_effects(operation)
    entries = list(graph.entries)
    entries[operation.slot] = (signature, *slots)
    return Graph(tuple(entries), graph.outs, graph.dead, graph.lines)


def insert_before(graph: GraphView, operation: Operation, target: str, *args: Any, **kwargs: Any) -> tuple[Graph, Operation]:
    """`graph` with `target(*args, **kwargs)` before an operation, and the new operation there.

    Arguments and errors as in `replace`. Operations and operands from the operation's slot on move, and must be looked up again; edits from
    the last to the first operation need no look-up.
    """
    graph = own(graph)
    _entry(graph, operation)
    signature, slots = _call(graph, operation, target, args, kwargs)
    if signature.random:
        raise GraphEditError(f"{target} draws random numbers: a program has no more random inputs than were recorded")
    count = len(signature.outs)
    new: list[Entry] = [(signature, *slots), *[None] * (0 if count == 1 else count)]
    edited = _renumbered(graph, operation.slot, 0, new)
    return edited, edited.operation(operation.slot)


def remove(graph: GraphView, operation: Operation, instead: Operand | None = None) -> Graph:
    """`graph` without an operation. instead: an earlier value of the same shape and dtype, which replaces its result.

    Raises GraphEditError if its result is used and `instead` is None, and for operations with side effects.
    """
    graph = own(graph)
    entry = _entry(graph, operation)
    if entry[0].has_side_effects:
        raise _has_effects(operation)
    results = result_slots(graph.entries, operation.slot)
    if any(graph.entries[slot] is not None for slot in results if slot != operation.slot):
        raise GraphEditError(f"{operation.text} has results that were computed before and are inputs now: it cannot be removed")
    used = {slot for _, (_, *operands) in graph.recorded() for slot in operands} | set(graph.outs)
    if used.isdisjoint(results):
        instead = None
    elif instead is None:
        raise GraphEditError(f"{operation.text} has users: say which value they get instead")
    elif len(results) != 1 or graph.parts.avals[instead.slot] is not graph.parts.avals[operation.slot]:
        raise GraphEditError(f"{instead.text} cannot stand for the results of {operation.text}, {_shown(entry[0].outs)}")
    elif instead.slot >= operation.slot:
        raise GraphEditError(f"%{instead.slot} is computed after {operation.text}, which it is to stand for")
    length = max(results, default=operation.slot) + 1 - operation.slot
    return _renumbered(graph, operation.slot, length, [], None if instead is None else instead.slot)


def _entry(graph: Graph, operation: Operation) -> tuple[Any, ...]:
    """The entry of an operation. Raises GraphEditError if the graph has another entry there."""
    entry = graph.entries[operation.slot] if operation.slot < len(graph.entries) else None
    if type(entry) is not tuple or entry[0].text() != operation.text or entry[1:] != operation.operands:
        raise GraphEditError(f"%{operation.slot} = {operation.text} is not in this graph, or not there any more: look it up again")
    return entry


def _has_effects(operation: Operation) -> GraphEditError:
    return GraphEditError(f"{operation.text} has side effects: it must stay as it is")


def _shown(avals: Sequence[Aval | None]) -> str:
    return ", ".join(map(str, avals))


def _call(graph: Graph, operation: Operation, target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Signature, list[int]]:
    """The signature of `target` at the slot of `operation`, and the slots that it takes, without the random input."""
    func = overload_named(target)
    spec = TABLE.get(target)
    if spec is None:
        raise GraphEditError(f"{target} has no lowering: register one first")
    if spec.has_side_effects:
        raise GraphEditError(f"{target} has side effects: such operations are recorded, not brought in by a pass")
    kwargs = {name: value for name, value in kwargs.items() if name not in PLACEMENT and name != "device"}
    names = [argument.name for argument in func._schema.arguments]
    named = [*zip(names, args, strict=False), *kwargs.items()]
    slots = []
    for name, value in named:
        for operand in (leaf for leaf in tree_leaves(value) if isinstance(leaf, Operand)):
            _check_operand(graph, operation, spec, name, operand)
            slots.append(operand.slot)
    avals = [graph.parts.avals[slot] for slot in slots]
    stand_ins, named_stand_ins = tree_map(lambda leaf: _stand_in(graph, leaf), (args, kwargs))
    result = abstract_result(func, spec, stand_ins, named_stand_ins)
    if result is NotImplemented:
        raise GraphEditError(f"the shape of what {target} gives depends on data")
    manual = any(aval is not None and aval.manual for aval in avals)
    inferred = tuple(result_aval(item, manual) for item in tree_flatten(result)[0])
    placeholders = tuple(_placeholder(value) for value in args)
    placeholders_by_name = {name: _placeholder(value) for name, value in kwargs.items()}
    signature = Signature(
        dotted_name(func),
        spec.lower,
        placeholders,
        placeholders_by_name,
        inferred,
        random=spec.random,
        line=operation.line,
        target=spec.name,
    )
    return signature, slots


def _check_operand(graph: Graph, operation: Operation, spec: OpSpec, name: str, operand: Operand) -> None:
    if not 0 <= operand.slot < operation.slot:
        raise GraphEditError(f"%{operand.slot} is not computed before %{operation.slot}, where {spec.name} is to take it")
    if graph.operand(operand.slot) != operand:
        raise GraphEditError(f"%{operand.slot} is no {operand.text} in this graph: look it up again")
    if operand.shape is None and (operand.text == "none" or name not in spec.scalars):
        raise GraphEditError(f"%{operand.slot} is no tensor, which {spec.name} needs as its {name}")


def _placeholder(value: Any) -> Any:
    if isinstance(value, Operand):
        return PLACEHOLDER
    if isinstance(value, (list, tuple)):
        return [_placeholder(item) for item in value]
    return value


def _stand_in(graph: Graph, value: Any) -> Any:
    """A stand-in to infer shapes with: a tensor without values, or a number of the kind that enters there."""
    if not isinstance(value, Operand):
        return value
    entry = graph.entries[value.slot]
    if not isinstance(entry, ScalarInput):
        aval = graph.parts.avals[value.slot]
        return None if aval is None else wrap(blank_value(current_recorder(), aval))
    if entry.aval is not None:
        return torch.ones((), dtype=entry.aval.dtype, device="cpu")
    return 1.0 if entry.kind is ScalarKind.FLOAT else 1


def _renumbered(graph: Graph, at: int, dropped: int, new: list[Entry], instead: int | None = None) -> Graph:
    """`graph` with `new` in the place of `dropped` entries from slot `at` on. instead: the slot that replaces a dropped one in operands."""
    shift = len(new) - dropped

    def moved(slot: int) -> int:
        if slot < at:
            return slot
        return slot + shift if slot >= at + dropped or instead is None else instead

    tail = [(entry[0], *map(moved, entry[1:])) if type(entry) is tuple else entry for entry in graph.entries[at + dropped :]]
    lines = {moved(slot): line for slot, line in graph.lines.items() if not at <= slot < at + dropped}
    return Graph((*graph.entries[:at], *new, *tail), tuple(map(moved, graph.outs)), graph.dead, lines)
