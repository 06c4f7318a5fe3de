"""Loops with a condition on the device, as one operation. They have no gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.entries import aval_at
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tracing.bodies import Body, check_on_device, inside, recording
from xla_core.engine.tracing.operations import Findings, Operands, record, results_of, seed_of_turn
from xla_core.ops.checks import nothing_found
from xla_core.ops.table import Context

_UINT32 = np.dtype(np.uint32)


def while_loop(
    cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Sequence[Any], additional_inputs: Sequence[Any] | None = None
) -> tuple[torch.Tensor, ...]:
    """Repeat `carried = body_fn(*carried, *additional)` while `cond_fn(*carried, *additional)` is true, and return the carried tensors.

    carried_inputs: xla tensors, which keep their shapes and dtypes. additional_inputs: tensors that stay the same. cond_fn returns a bool
    tensor of one element, and body_fn a tuple of tensors like `carried_inputs`. Both are recorded once and run on the device as one
    operation: they may not read values.

    Raises TypeError for inputs that are not tensors, ValueError for a body that changes shapes or dtypes, RuntimeError for tensors on other
    devices and for a backward pass through the results: `scan`, whose number of turns is known, has a gradient.
    """
    if isinstance(carried_inputs, torch.Tensor):
        raise TypeError("while_loop takes a tuple of tensors, got a Tensor: write (tensor,)")
    inputs = [*carried_inputs, *(additional_inputs or ())]
    for tensor in inputs:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"while_loop carries tensors, got a {type(tensor).__name__}: make it a tensor on the device")
    check_on_device("while_loop", inputs)
    if not inputs:
        raise ValueError("while_loop needs a tensor to carry")
    recorder = holder(inputs[0])._storage.value.recorder
    carried = len(carried_inputs)
    condition, from_condition, [flag] = _recorded(recorder, inputs, lambda *tensors: [cond_fn(*tensors)])
    if flag is None or math.prod(flag.shape) != 1:
        raise ValueError(f"the condition of while_loop returns a tensor of one element, not {flag}")
    body, from_body, after = _recorded(recorder, inputs, lambda *tensors: _listed(body_fn(*tensors)))
    before = [_aval(tensor) for tensor in inputs[:carried]]
    if after != before:
        raise ValueError(f"the body of while_loop must return tensors like those that it carries, {before}, but returns {after}")
    outside = [*from_condition, *from_body]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (*inputs, *outside)):
        results = _NoReverse.apply(recorder, condition, body, carried, inputs, *inputs, *outside)  # type: ignore[no-untyped-call]
        return tuple(results)
    return tuple(_run(recorder, condition, body, carried, inputs))


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Repeat `values = body_fun(*values)` `upper - lower` times, and return `(left, *values)`; left is 0 in the dtype of the bounds.

    lower, upper: integers, or integer tensors of one element on the device; TypeError for others. body_fun: like the body of `while_loop`,
    for `input_value`.
    """
    if not input_value:
        raise ValueError("fori_loop needs a tensor to work on, behind its function")
    check_on_device("fori_loop", [tensor for tensor in input_value if isinstance(tensor, torch.Tensor)])
    for bound in (lower, upper):
        if isinstance(bound, float) or (isinstance(bound, torch.Tensor) and bound.is_floating_point()):
            raise TypeError(f"fori_loop counts from one integer to another, got {bound!r}")
    left = upper - lower
    if not isinstance(left, torch.Tensor):
        left = torch.full((), left, device=input_value[0].device)  # made on the device: nothing is uploaded

    def body(turns: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return turns - 1, *_listed(body_fun(*values))

    return while_loop(lambda turns, *values: turns > 0, body, (left, *input_value))


def _listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _aval(tensor: Any) -> Aval:
    return aval_of(tuple(tensor.shape), tensor.dtype, holder(tensor)._storage.value.aval.manual)


def _recorded(
    recorder: Recorder, inputs: Sequence[Any], function: Callable[..., Sequence[Any]]
) -> tuple[Body, list[torch.Tensor], list[Aval | None]]:
    """Record a body. Returns it, the tensors from outside that need a gradient, and the avals of its results."""
    with recording(recorder, "while_loop") as trace, torch.no_grad():
        results = function(*[trace.stand_in(_aval(tensor)) for tensor in inputs])
        slots = [trace.slot_of(result) for result in results]
        body, avals = trace.body(slots), [aval_at(trace.graph.entries, slot) for slot in slots]
    return body, [inside(tensor) for tensor in trace.tensors], avals


def _run(recorder: Recorder, condition: Body, body: Body, carried: int, inputs: Sequence[Any]) -> list[torch.Tensor]:
    outs = [_aval(tensor) for tensor in inputs[:carried]]
    return record(recorder, "while_loop", partial(_lower, carried), (carried,), [condition, body], inputs, outs)


def _lower(carried: int, context: Context, bodies: Sequence[Body], operands: Operands) -> list[Any]:
    additional, findings = operands.given[carried:], Findings(context)

    def seeds(which: int, turn: Any) -> list[Any]:
        return [seed_of_turn(seed, turn) for seed in operands.seeds[which]]

    def goes_on(state: tuple[Any, list[Any], list[Any]]) -> Any:
        turn, values, _ = state
        [flag] = results_of(context, bodies[0], [*values, *additional], operands.held[0], seeds(0, turn), None)
        flag = lax.reshape(flag, ())
        return flag if flag.dtype == bool else lax.ne(flag, lax.full_like(flag, 0))

    def again(state: tuple[Any, list[Any], list[Any]]) -> tuple[Any, list[Any], list[Any]]:
        turn, values, worst = state
        checks = findings.collect()
        results = results_of(context, bodies[1], [*values, *additional], operands.held[1], seeds(1, turn), checks)
        latest = findings.values(checks)
        return turn + np.uint32(1), results, [lax.max(old, new) for old, new in zip(worst, latest, strict=False)]

    start = lax.full((), 0, _UINT32), operands.given[:carried]
    jax.eval_shape(lambda: again((*start, [])))  # finds how many checks the body makes
    _, results, worst = lax.while_loop(goes_on, again, (*start, [nothing_found(context.platform) for _ in findings.made]))
    findings.report(worst)
    return list(results)


class _NoReverse(torch.autograd.Function):
    """A loop without a gradient, because its number of turns is not known before it has run."""

    @staticmethod
    def forward(ctx: Any, recorder: Recorder, condition: Body, body: Body, carried: int, inputs: Sequence[Any], *tensors: Any) -> Any:
        results = _run(recorder, condition, body, carried, inputs)
        ctx.mark_non_differentiable(*[result for result in results if not (result.dtype.is_floating_point or result.dtype.is_complex)])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        raise RuntimeError(
            "while_loop and fori_loop have no gradient, since nobody knows before how many turns they take: use "
            "torch_xla.experimental.scan.scan, or call them in torch.no_grad()"
        )
