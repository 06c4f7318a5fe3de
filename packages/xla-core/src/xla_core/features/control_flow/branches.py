"""Functions that are one operation of the graph, alone or as the branches of a predicate, with the gradients of torch's autograd.

A branch of a conditional gives what it saves for its gradient beside zeros for what the others save.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import torch
from jax import lax

from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tracing.bodies import Body, Feed
from xla_core.engine.tracing.gradients import Differentiated, differentiated, final
from xla_core.engine.tracing.operations import Operands, record, results_of
from xla_core.ops.checks import Check, nothing_found
from xla_core.ops.table import Context


@dataclass(frozen=True, slots=True)
class Branches:
    """Functions of the same arguments with results of the same shapes, one of which runs."""

    name: str
    parts: tuple[Differentiated, ...]
    avals: tuple[Aval, ...]

    @property
    def outs(self) -> list[Aval]:
        """The results, then what each branch saves."""
        return [*self.parts[0].outs, *[aval for part in self.parts for aval in part.saved]]

    @property
    def differentiable(self) -> list[int]:
        """The places of results that have a gradient in some branch."""
        return sorted({place for part in self.parts for place in part.differentiable})

    @property
    def wanted(self) -> list[int]:
        """The arguments that need a gradient."""
        return sorted({place for part in self.parts for place in part.wanted})

    @property
    def used(self) -> list[int]:
        """The arguments that gradients are computed from."""
        bodies = [part.backward for part in self.parts if part.backward is not None]
        return sorted({place for body in bodies for feed, place in body.feeds if feed is Feed.GIVEN and place < len(self.avals)})


def branches(
    recorder: Recorder, name: str, functions: Sequence[Callable[[list[Any]], Sequence[Any]]], tensors: Sequence[torch.Tensor]
) -> Branches:
    """Record `functions` for arguments like `tensors`. Raises ValueError if their results differ in number, shape or dtype."""
    avals = [aval_of(tuple(tensor.shape), tensor.dtype, holder(tensor)._storage.value.aval.manual) for tensor in tensors]
    requires_grad = [tensor.requires_grad for tensor in tensors]
    parts = [differentiated(recorder, name, avals, requires_grad, function) for function in functions]
    for part in parts[1:]:
        if part.outs != parts[0].outs:
            raise ValueError(f"the branches of {name} must give alike results, but give {list(parts[0].outs)} and {list(part.outs)}")
    return Branches(name, tuple(parts), tuple(avals))


def run(recorder: Recorder, found: Branches, predicate: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The results of the first branch where `predicate` is true, else of the second; of the only one if there is no predicate."""
    if all(part.backward is None for part in found.parts):
        return _forward(recorder, found, predicate, tensors)
    outside = [tensor for part in found.parts for tensor in part.tensors]
    results: Sequence[torch.Tensor] = _Differentiable.apply(recorder, found, predicate, *tensors, *outside)  # type: ignore[no-untyped-call]
    return results


def _forward(recorder: Recorder, found: Branches, predicate: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    given = [*([] if predicate is None else [predicate]), *tensors]
    counts = tuple(len(part.saved) for part in found.parts)
    lower = partial(_lower, len(found.parts[0].outs), counts)
    return record(recorder, found.name, lower, counts, [part.forward for part in found.parts], given, found.outs)


class _Differentiable(torch.autograd.Function):
    """Branches whose gradient is that of the branch that ran."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, found: Branches, predicate: torch.Tensor | None, *tensors: torch.Tensor) -> Any:
        arguments = tensors[: len(found.avals)]
        results = _forward(recorder, found, predicate, arguments)
        count = len(found.parts[0].outs)
        ctx.recorder, ctx.found, ctx.conditional = recorder, found, predicate is not None
        used = [arguments[place] for place in found.used]
        ctx.save_for_backward(*([] if predicate is None else [predicate]), *used, *results[count:])
        ctx.mark_non_differentiable(*[result for place, result in enumerate(results[:count]) if place not in found.differentiable])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        found: Branches = ctx.found
        bodies, plans, before = [], [], 0
        for part in found.parts:
            bodies.append(part.backward or _EMPTY)
            places = [*part.wanted, *range(len(found.avals) + before, len(found.avals) + before + len(part.tensors))]
            plans.append(_Plan(tuple(places[place] for place in part.dependent), part.differentiable, len(part.saved)))
            before += len(part.tensors)
        outside = [tensor for part in found.parts for tensor in part.tensors]
        places = sorted({place for plan in plans for place in plan.gives})
        kinds = [*found.avals, *[aval_of(tuple(tensor.shape), tensor.dtype) for tensor in outside]]
        kept, count = ctx.saved_tensors, ctx.conditional + len(found.used)
        tangents = [cotangents[place] for place in found.differentiable]
        given = [*kept[:count], *tangents, *kept[count:]]
        lower = partial(_lower_backward, ctx.conditional, len(found.avals), found.used, found.differentiable, places, plans)
        layout = (ctx.conditional, tuple(found.used), tuple(found.differentiable), tuple(places), *[plan.text() for plan in plans])
        grads = record(ctx.recorder, f"{found.name}_backward", lower, layout, bodies, given, [kinds[place] for place in places])
        of = dict(zip(places, final(found.name, grads, [*kept[:count], *tangents, *outside]), strict=True))
        return None, None, None, *[of.get(place) for place in range(len(kinds))]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The places of the gradients that a branch gives, of the gradients that it takes, and how many values it saved."""

    gives: tuple[int, ...]
    takes: tuple[int, ...]
    saved: int

    def text(self) -> tuple[Any, ...]:
        """The same in every process."""
        return (self.gives, self.takes, self.saved)


_EMPTY = Body(Graph((), ()), (), (), ())  # gives no gradients

# One of the functions between which a predicate chooses: takes arrays, gives results and the values of its checks.
_Chosen = Callable[..., list[Any]]


def _choose(predicate: Any, first: _Chosen, second: _Chosen, arrays: list[Any]) -> list[Any]:
    flag = lax.reshape(predicate, ())
    return cast(list[Any], lax.cond(flag if flag.dtype == bool else lax.ne(flag, lax.full_like(flag, 0)), first, second, *arrays))


def _lower(count: int, saved: tuple[int, ...], context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    if len(bodies) == 1:
        return results_of(context, bodies[0], operands.given, operands.held[0], operands.seeds[0], context.checks)
    predicate, *given = operands.given
    shapes = [out for out in context.out[count:] if out is not None]
    made: list[list[Check]] = [[], []]

    def branch(number: int, *arrays: Any) -> list[Any]:
        checks: list[Check] | None = None if context.checks is None else []
        results = results_of(context, bodies[number], arrays, operands.held[number], operands.seeds[number], checks)
        made[number] = checks or []
        begin = sum(saved[:number])
        kept = [lax.full(shape.shape, 0, shape.dtype) for shape in shapes]
        kept[begin : begin + saved[number]] = results[count:]
        nothing = nothing_found()
        found = [[check.value for check in checks or ()] if place == number else [nothing] * len(made[place]) for place in (0, 1)]
        return [*results[:count], *kept, *found[0], *found[1]]

    if context.checks is not None:  # a branch has to know how many checks the other makes
        for number in (0, 1):
            jax.eval_shape(partial(branch, number), *given)
    results = _choose(predicate, partial(branch, 0), partial(branch, 1), given)
    values = iter(results[count + len(shapes) :])
    if context.checks is not None:
        context.checks.extend(Check(check.fault, next(values), check.numbers) for checks in made for check in checks)
    return results[: count + len(shapes)]


def _lower_backward(
    conditional: bool,
    arguments: int,
    used: Sequence[int],
    differentiable: Sequence[int],
    places: Sequence[int],
    plans: Sequence[_Plan],
    context: Context,
    bodies: Sequence[Body],
    operands: Operands,
) -> list[Any]:
    rest = iter(operands.given)
    predicate = next(rest) if conditional else None
    kept = {place: next(rest) for place in used}
    cotangents = {place: next(rest) for place in differentiable}
    saved = [[next(rest) for _ in range(plan.saved)] for plan in plans]
    shapes = {place: out for place, out in zip(places, context.out, strict=True) if out is not None}

    def branch(number: int) -> list[Any]:
        plan = plans[number]
        given = [*[kept.get(place) for place in range(arguments)], *[cotangents[place] for place in plan.takes], *saved[number]]
        grads = dict(
            zip(plan.gives, results_of(context, bodies[number], given, operands.held[number], operands.seeds[number], None), strict=True)
        )
        return [grads[place] if place in grads else lax.full(shape.shape, 0, shape.dtype) for place, shape in shapes.items()]

    if predicate is None:
        return branch(0)
    return _choose(predicate, partial(branch, 0), partial(branch, 1), [])
