"""Split a function that was recorded together with its gradient into a forward and a backward body.

Torch's own autograd runs over the stand-ins, so that custom gradients, checkpoints and detached parts work as elsewhere. Values of the
forward body that torch's formulas need become further results of it, which the backward body takes.
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
    """A function and its gradient. The forward body returns `outs`, then the saved values.

    tensors: from outside, which need a gradient. wanted: indices of the arguments that need one. differentiable: indices of the `outs` that
        have one.
    backward: takes the arguments of the forward body, then gradients of the differentiable results, then the saved values; returns
        gradients of `wanted`, then of `tensors`, if the results depend on them (their indices: `dependent`). None if no gradient is needed.
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
    """Record `function`, which takes a list of tensors like `avals` and returns a flat sequence of tensors, with its gradient.

    requires_grad: for each argument, whether it needs one. kept: indices of arguments that cannot be passed to the backward body, so that
    they are saved. together: indices of arguments that need a gradient if any other or a tensor from outside does: what a loop carries.
    """
    enabled = torch.is_grad_enabled()
    with recording(recorder, what) as body_recording:
        with_gradient = [
            enabled and (needed or (index in together and is_inexact(aval)))
            for index, (aval, needed) in enumerate(zip(avals, requires_grad, strict=True))
        ]
        stand_ins = [body_recording.stand_in(aval, needed) for aval, needed in zip(avals, with_gradient, strict=True)]
        results = [body_recording.inside(result) for result in function(list(stand_ins))]
        slots = [body_recording.slot_of(result) for result in results]
        outs = tuple(_aval(body_recording.graph, slot) for slot in slots)
        # Leaves from outside that only a custom gradient depends on, no function, have no stand-in.
        others, edges = _leaves(body_recording, results)
        tensors = [*body_recording.tensors, *others]
        if not enabled or not (any(requires_grad) or tensors):
            return Differentiated(body_recording.body(slots), outs)
        needing = tuple(index for index, needed in enumerate(with_gradient) if needed)
        differentiable = tuple(index for index, result in enumerate(results) if result.requires_grad)
        boundary = len(body_recording.graph.entries)
        tangents = [body_recording.stand_in(outs[index]) for index in differentiable]
        inputs = [*[stand_ins[index] for index in needing], *body_recording.leaves, *edges]
        with torch.autocast("xla", enabled=False), without_hooks(others):
            grads = _grads([results[index] for index in differentiable], inputs, tangents)
        dependent = tuple(index for index, grad in enumerate(grads) if grad is not None)
        grad_slots = [body_recording.graph.adopt(value_of(grad)) for grad in grads if grad is not None]
        saved = _saved(body_recording, boundary, grad_slots, {body_recording.given[index] for index in kept})
        forward = body_recording.body([*slots, *saved])
        backward = body_of(_without(body_recording.graph, saved, len(body_recording.given)), grad_slots)
        avals_saved = tuple(_aval(body_recording.graph, slot) for slot in saved)
    return Differentiated(forward, outs, avals_saved, tuple(map(inside, tensors)), needing, differentiable, dependent, backward)


def final(what: str, grads: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients computed from `inputs` that raise RuntimeError when they are differentiated (`create_graph=True`)."""
    if not torch.is_grad_enabled():
        return list(grads)
    leaves = [grad.detach().requires_grad_() for grad in grads]
    return list(_Final.apply(what, len(leaves), *leaves, *inputs))  # type: ignore[no-untyped-call]


class _Final(torch.autograd.Function):
    """Identity on gradients whose backward raises: a second derivative would silently be missing otherwise."""

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
    """The leaves from outside that results depend on, and the edges where their gradients arrive. Functions got stand-ins for theirs."""
    leaves: list[torch.Tensor] = []
    edges: list[GradientEdge] = []
    seen: set[Any] = set()
    stack = [result.grad_fn for result in results if isinstance(result, torch.Tensor)]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and recording.is_outside(variable):
            leaves.append(variable)
            edges.append(GradientEdge(node, 0))
        stack += [following for following, _ in node.next_functions]
    return leaves, edges


def _grads(results: list[Any], inputs: list[Any], tangents: list[Any]) -> Sequence[Any]:
    if not results or not inputs:
        return [None] * len(inputs)
    return torch.autograd.grad(results, inputs, tangents, retain_graph=True, allow_unused=True)


def _aval(graph: PendingGraph, slot: int) -> Aval:
    return cast(Aval, aval_at(graph.entries, slot))


def _saved(body: Recording, boundary: int, grad_slots: list[int], kept: set[int]) -> list[int]:
    """The slots of the values that the backward part takes from the forward part, ascending."""
    graph = body.graph
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
        start = operation_at(entries, slot)
        entry = entries[start]
        if type(entry) is not tuple:
            if slot in kept:
                saved.add(slot)
        # Recomputing costs less than keeping for what is the same in each turn, and for views and casts of leaves.
        elif start >= boundary or start not in varying or start in reads or _is_cast_of_leaf(entries, entry):
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
    cut.input_data = dict(sorted({**graph.input_data, **{slot: Argument(first + offset) for offset, slot in enumerate(saved)}}.items()))
    return cut
