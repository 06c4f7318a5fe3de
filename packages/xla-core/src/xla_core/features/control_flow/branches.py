"""Functions as one operation of the graph, alone or as branches of a conditional, with the gradients of torch's autograd.

Each branch of a conditional returns the values that it saves for its gradient, and zeros for those that the others save.
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
    """Recorded functions of the same arguments with results of the same shapes, one of which runs."""

    name: str
    parts: tuple[Differentiated, ...]
    avals: tuple[Aval, ...]

    @property
    def outs(self) -> list[Aval]:
        """The avals of the results, then of the values that each branch saves."""
        return [*self.parts[0].outs, *[aval for part in self.parts for aval in part.saved]]

    @property
    def differentiable(self) -> list[int]:
        """Indices of results that have a gradient in some branch."""
        return sorted({index for part in self.parts for index in part.differentiable})

    @property
    def wanted(self) -> list[int]:
        """Indices of the arguments that need a gradient."""
        return sorted({index for part in self.parts for index in part.wanted})

    @property
    def used(self) -> list[int]:
        """Indices of the arguments that gradients are computed from."""
        bodies = [part.backward for part in self.parts if part.backward is not None]
        return sorted({index for body in bodies for feed, index in body.feeds if feed is Feed.GIVEN and index < len(self.avals)})


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


def run(recorder: Recorder, recorded: Branches, predicate: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Run the first branch where `predicate` is true, else the second; without a predicate, the only one."""
    if all(part.backward is None for part in recorded.parts):
        return _forward(recorder, recorded, predicate, tensors)
    outside = [tensor for part in recorded.parts for tensor in part.tensors]
    results: Sequence[torch.Tensor] = _DifferentiableBranches.apply(recorder, recorded, predicate, *tensors, *outside)  # type: ignore[no-untyped-call]
    return results


def _forward(recorder: Recorder, recorded: Branches, predicate: torch.Tensor | None, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    arguments = [*([] if predicate is None else [predicate]), *tensors]
    counts = tuple(len(part.saved) for part in recorded.parts)
    lower = partial(_lower, len(recorded.parts[0].outs), counts)
    return record(recorder, recorded.name, lower, counts, [part.forward for part in recorded.parts], arguments, recorded.outs)


class _DifferentiableBranches(torch.autograd.Function):
    """Branches with the gradient of the branch that ran."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, recorded: Branches, predicate: torch.Tensor | None, *tensors: torch.Tensor) -> Any:
        arguments = tensors[: len(recorded.avals)]
        results = _forward(recorder, recorded, predicate, arguments)
        count = len(recorded.parts[0].outs)
        ctx.recorder, ctx.recorded, ctx.conditional = recorder, recorded, predicate is not None
        used = [arguments[index] for index in recorded.used]
        ctx.save_for_backward(*([] if predicate is None else [predicate]), *used, *results[count:])
        ctx.mark_non_differentiable(*[result for index, result in enumerate(results[:count]) if index not in recorded.differentiable])
        return tuple(results[:count])

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        recorded: Branches = ctx.recorded
        bodies, plans, before = [], [], 0
        for part in recorded.parts:
            bodies.append(part.backward or _EMPTY)
            indices = [*part.wanted, *range(len(recorded.avals) + before, len(recorded.avals) + before + len(part.tensors))]
            plans.append(_Plan(tuple(indices[index] for index in part.dependent), part.differentiable, len(part.saved)))
            before += len(part.tensors)
        outside = [tensor for part in recorded.parts for tensor in part.tensors]
        indices = sorted({index for plan in plans for index in plan.gives})
        avals = [*recorded.avals, *[aval_of(tuple(tensor.shape), tensor.dtype) for tensor in outside]]
        kept, count = ctx.saved_tensors, ctx.conditional + len(recorded.used)
        tangents = [cotangents[index] for index in recorded.differentiable]
        arguments = [*kept[:count], *tangents, *kept[count:]]
        lower = partial(_lower_backward, ctx.conditional, len(recorded.avals), recorded.used, recorded.differentiable, indices, plans)
        layout = (ctx.conditional, tuple(recorded.used), tuple(recorded.differentiable), tuple(indices), *[plan.text() for plan in plans])
        grads = record(ctx.recorder, f"{recorded.name}_backward", lower, layout, bodies, arguments, [avals[index] for index in indices])
        of = dict(zip(indices, final(recorded.name, grads, [*kept[:count], *tangents, *outside]), strict=True))
        return None, None, None, *[of.get(index) for index in range(len(avals))]


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which gradients a branch returns and which it takes, by index, and how many values it saved."""

    gives: tuple[int, ...]
    takes: tuple[int, ...]
    saved: int

    def text(self) -> tuple[Any, ...]:
        """The plan as a tuple that is equal in every process."""
        return (self.gives, self.takes, self.saved)


_EMPTY = Body(Graph((), ()), (), (), ())  # returns no gradients

# A branch for `_choose`: takes arrays, and returns results and the values of its checks.
_Chosen = Callable[..., list[Any]]


def _choose(predicate: Any, first: _Chosen, second: _Chosen, arrays: list[Any]) -> list[Any]:
    flag = lax.reshape(predicate, ())
    return cast(list[Any], lax.cond(flag if flag.dtype == bool else lax.ne(flag, lax.full_like(flag, 0)), first, second, *arrays))


def _lower(count: int, saved: tuple[int, ...], context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    if len(bodies) == 1:
        return results_of(context, bodies[0], operands.given, operands.held[0], operands.seeds[0], context.checks)
    predicate, *arguments = operands.given
    shapes = [out for out in context.out[count:] if out is not None]
    checks_of: list[list[Check]] = [[], []]

    def branch(which: int, *arrays: Any) -> list[Any]:
        checks: list[Check] | None = None if context.checks is None else []
        results = results_of(context, bodies[which], arrays, operands.held[which], operands.seeds[which], checks)
        checks_of[which] = checks or []
        begin = sum(saved[:which])
        kept = [lax.full(shape.shape, 0, shape.dtype) for shape in shapes]
        kept[begin : begin + saved[which]] = results[count:]
        no_fault = nothing_found(context.platform)
        findings = [[check.value for check in checks or ()] if other == which else [no_fault] * len(checks_of[other]) for other in (0, 1)]
        return [*results[:count], *kept, *findings[0], *findings[1]]

    if context.checks is not None:  # each branch has to know how many checks the other makes
        for which in (0, 1):
            jax.eval_shape(partial(branch, which), *arguments)
    results = _choose(predicate, partial(branch, 0), partial(branch, 1), arguments)
    values = iter(results[count + len(shapes) :])
    if context.checks is not None:
        context.checks.extend(Check(check.fault, next(values), check.numbers) for checks in checks_of for check in checks)
    return results[: count + len(shapes)]


def _lower_backward(
    conditional: bool,
    arguments: int,
    used: Sequence[int],
    differentiable: Sequence[int],
    indices: Sequence[int],
    plans: Sequence[_Plan],
    context: Context,
    bodies: Sequence[Body],
    operands: Operands,
) -> list[Any]:
    remaining = iter(operands.given)
    predicate = next(remaining) if conditional else None
    kept = {index: next(remaining) for index in used}
    cotangents = {index: next(remaining) for index in differentiable}
    saved = [[next(remaining) for _ in range(plan.saved)] for plan in plans]
    shapes = {index: out for index, out in zip(indices, context.out, strict=True) if out is not None}

    def branch(which: int) -> list[Any]:
        plan = plans[which]
        inputs = [*[kept.get(index) for index in range(arguments)], *[cotangents[index] for index in plan.takes], *saved[which]]
        grads = dict(
            zip(plan.gives, results_of(context, bodies[which], inputs, operands.held[which], operands.seeds[which], None), strict=True)
        )
        return [grads[index] if index in grads else lax.full(shape.shape, 0, shape.dtype) for index, shape in shapes.items()]

    if predicate is None:
        return branch(0)
    return _choose(predicate, partial(branch, 0), partial(branch, 1), [])
