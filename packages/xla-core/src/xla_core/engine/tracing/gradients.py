"""Part a function that was recorded together with its gradient into a forward and a backward body.

Torch's own autograd runs over the stand-ins, so that custom gradients, checkpoints and detached parts are what they are elsewhere. The
backward body takes from the forward one what torch's formulas need of it: values that the forward body then gives as further results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.autograd.graph import GradientEdge

from xla_core.base.private_torch import without_hooks
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarInput, ScalarKind, aval_at, operation_at
from xla_core.engine.graph.pending_graph import PendingGraph, Recorder
from xla_core.engine.graph.selection import dependants
from xla_core.engine.tensor.values import value_of
from xla_core.engine.tracing.bodies import Body, Recording, body_of, inside, recording
from xla_core.engine.tracing.origins import Argument
from xla_core.ops.table import TABLE


@dataclass(frozen=True, slots=True)
class Differentiated:
    """A function and its gradient. The forward body gives `outs`, then what is saved.

    tensors: from outside, which need a gradient. wanted: the arguments that do. differentiable: the places among `outs` that have one.
    backward: its arguments are those of the forward body, then gradients of the differentiable results, then what is saved; it gives
        gradients of `wanted`, then of `tensors`, where they depend on the results: `dependent` has their places. None if nothing needs one.
    """

    forward: Body
    outs: tuple[Aval, ...]
    saved: tuple[Aval, ...] = ()
    tensors: tuple[torch.Tensor, ...] = ()
    wanted: tuple[int, ...] = ()
    differentiable: tuple[int, ...] = ()
    dependent: tuple[int, ...] = ()
    backward: Body | None = None


def is_inexact(aval: Aval) -> bool:
    """Whether a value may have a gradient."""
    return not aval.integral


def differentiated(
    recorder: Recorder,
    what: str,
    avals: Sequence[Aval],
    requires_grad: Sequence[bool],
    function: Callable[[list[Any]], Sequence[Any]],
    kept: Sequence[int] = (),
    together: Sequence[int] = (),
) -> Differentiated:
    """Record `function`, which takes a list of tensors like `avals` and gives a flat sequence of tensors, with its gradient.

    requires_grad: the arguments that need one. kept: arguments that the backward body cannot be given, so that they are saved. together:
    arguments that need a gradient if any other or a tensor from outside does: what a loop carries.
    """
    enabled = torch.is_grad_enabled()
    with recording(recorder, what) as found:
        asked = [
            enabled and (needed or (place in together and is_inexact(aval)))
            for place, (aval, needed) in enumerate(zip(avals, requires_grad, strict=True))
        ]
        given = [found.stand_in(aval, needed) for aval, needed in zip(avals, asked, strict=True)]
        results = [found.inside(result) for result in function(list(given))]
        slots = [found.slot_of(result) for result in results]
        outs = tuple(_aval(found.graph, slot) for slot in slots)
        # Leaves from outside that a custom gradient depends on, and no function was given, stand for themselves.
        others, edges = _leaves(found, results)
        tensors = [*found.tensors, *others]
        if not enabled or not (any(requires_grad) or tensors):
            return Differentiated(found.body(slots), outs)
        wanted = tuple(place for place, needed in enumerate(asked) if needed)
        differentiable = tuple(place for place, result in enumerate(results) if result.requires_grad)
        boundary = len(found.graph.entries)
        tangents = [found.stand_in(outs[place]) for place in differentiable]
        inputs = [*[given[place] for place in wanted], *found.leaves, *edges]
        with torch.autocast("xla", enabled=False), without_hooks(others):
            grads = _grads([results[place] for place in differentiable], inputs, tangents)
        dependent = tuple(place for place, grad in enumerate(grads) if grad is not None)
        grad_slots = [found.graph.adopt(value_of(grad)) for grad in grads if grad is not None]
        saved = _saved(found, boundary, grad_slots, {found.given[place] for place in kept})
        forward = found.body([*slots, *saved])
        backward = body_of(_without(found.graph, saved, len(found.given)), grad_slots)
        avals_saved = tuple(_aval(found.graph, slot) for slot in saved)
    return Differentiated(forward, outs, avals_saved, tuple(map(inside, tensors)), wanted, differentiable, dependent, backward)


def final(what: str, grads: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients that were computed of `inputs`, which raise RuntimeError if somebody differentiates them (`create_graph=True`)."""
    if not torch.is_grad_enabled():
        return list(grads)
    asked = [grad.detach().requires_grad_() for grad in grads]
    return list(_Final.apply(what, len(asked), *asked, *inputs))  # type: ignore[no-untyped-call]


class _Final(torch.autograd.Function):
    """Gradients without a gradient, which would be lost in silence otherwise."""

    @staticmethod
    def forward(ctx: Any, what: str, count: int, *tensors: torch.Tensor) -> Any:
        ctx.what = what
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.what} has no second derivative: differentiate twice inside of its function, or call the function without {ctx.what}"
        )


def _leaves(recording: Recording, results: Sequence[Any]) -> tuple[list[torch.Tensor], list[GradientEdge]]:
    """The leaves from outside that results depend on, and where their gradients arrive: functions are given others in their places."""
    found: list[torch.Tensor] = []
    edges: list[GradientEdge] = []
    known: set[Any] = set()
    stack = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
    while stack:
        node = stack.pop()
        if node is None or node in known:
            continue
        known.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and recording.is_outside(variable):
            found.append(variable)
            edges.append(GradientEdge(node, 0))
        stack += [each for each, _ in node.next_functions]
    return found, edges


def _grads(results: list[Any], inputs: list[Any], tangents: list[Any]) -> Sequence[Any]:
    if not results or not inputs:
        return [None] * len(inputs)
    return torch.autograd.grad(results, inputs, tangents, retain_graph=True, allow_unused=True)


def _aval(graph: PendingGraph, slot: int) -> Aval:
    return cast(Aval, aval_at(graph.entries, slot))


def _saved(found: Recording, boundary: int, grad_slots: list[int], kept: set[int]) -> list[int]:
    """The slots of what the backward part takes from the forward part, ascending."""
    graph = found.graph
    entries = graph.entries
    leaves = [slot for slot, source in graph.input_data.items() if _varies(entries[slot], source)]
    varying = dependants(graph, leaves)
    reads = set(graph.reads.values())
    saved: set[int] = set()
    seen: set[int] = set()
    stack = list(grad_slots)
    while stack:
        slot = stack.pop()
        if slot in seen:
            continue
        seen.add(slot)
        place = operation_at(entries, slot)
        entry = entries[place]
        if type(entry) is not tuple:
            if slot in kept:
                saved.add(slot)
        # What is the same in each turn, and views and casts of what is there anyway, cost less to do again than to keep.
        elif place >= boundary or place not in varying or place in reads or _is_cast_of_leaf(entries, entry):
            stack.extend(entry[1:])
        else:
            saved.add(slot)
    return sorted(saved)


def _varies(entry: Any, source: Any) -> bool:
    return isinstance(source, Argument) or (isinstance(entry, ScalarInput) and entry.kind is ScalarKind.SEED)


def _is_cast_of_leaf(entries: Sequence[Any], entry: tuple[Any, ...]) -> bool:
    row = TABLE.get(entry[0].target)
    return row is not None and row.only_casts and type(entries[entry[1]]) is Aval


def _without(graph: PendingGraph, saved: Sequence[int], first: int) -> PendingGraph:
    """The graph with the slots of `saved` as leaves that stand for arguments from `first` on."""
    cut = PendingGraph()
    cut.entries = list(graph.entries)
    for slot in saved:
        cut.entries[slot] = _aval(graph, slot)
    cut.input_data = dict(sorted({**graph.input_data, **{slot: Argument(first + number) for number, slot in enumerate(saved)}}.items()))
    return cut
