"""Record an operation that has bodies, and evaluate bodies where it is lowered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.engine.compile.emit import evaluate
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import SEED
from xla_core.engine.graph.pending_graph import Recorder, Value
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.graph.text import graph_hash
from xla_core.engine.runtime.pending_limit import relieve
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.tensor.encode import remember
from xla_core.engine.tensor.observing import wrapped
from xla_core.engine.tensor.plain import holder
from xla_core.engine.tensor.record import define
from xla_core.engine.tensor.tensor import wrap
from xla_core.engine.tensor.values import value_of
from xla_core.engine.tracing.bodies import Body, Feed, HostNumber
from xla_core.ops.checks import Check
from xla_core.ops.random.threefry import threefry2x32
from xla_core.ops.table import Context

_UINT32 = np.dtype(np.uint32)
Array = jax.Array


@dataclass(frozen=True, slots=True)
class Operands:
    """The operands of an operation as its lowering gets them. given: the arguments. held, seeds: those of each body."""

    given: list[Any]
    held: list[list[Any]]
    seeds: list[list[Any]]


# (context, bodies, operands) -> results
Lowering = Callable[[Context, Sequence[Body], Operands], list[Any]]
_signatures: dict[Any, Signature] = {}


def record(
    recorder: Recorder,
    name: str,
    lower: Lowering,
    layout: tuple[Any, ...],
    bodies: Sequence[Body],
    arguments: Sequence[torch.Tensor | Value],
    outs: Sequence[Aval],
) -> list[torch.Tensor]:
    """Record one operation over `arguments` and the values that its bodies capture; returns a tensor for each of `outs`.

    layout: all else that `lower` depends on: hashable, with the same text in every process.
    """

    def run(arguments: tuple[Any, ...], _: Any) -> list[torch.Tensor]:
        values = [argument if isinstance(argument, Value) else value_of(holder(argument)) for argument in arguments]
        return _recorded(recorder, name, lower, layout, bodies, values, outs)

    results: list[torch.Tensor] = wrapped(run)(tuple(arguments), {})
    return results


def _recorded(
    recorder: Recorder,
    name: str,
    lower: Lowering,
    layout: tuple[Any, ...],
    bodies: Sequence[Body],
    values: Sequence[Value],
    outs: Sequence[Aval],
) -> list[torch.Tensor]:
    with recorder.lock:
        pending_graph = recorder.pending_graph
        slots: list[Any] = [None, *[pending_graph.adopt(value) for value in values]]
        for body in bodies:
            for captured in body.held:
                slots.append(
                    pending_graph.add_scalar(captured.kind, captured.number)
                    if isinstance(captured, HostNumber)
                    else pending_graph.adopt(captured)
                )
            slots += [pending_graph.add_scalar(SEED, seed) for seed in body.seeds]
        signature = _signature(name, lower, layout, bodies, len(values), tuple(outs))
        results = [value for value in define(recorder, pending_graph, signature, slots) if value is not None]
    if len(pending_graph.entries) > pending_graph.limit:
        relieve(recorder, results)
    return [wrap(value) for value in results]


def _signature(
    name: str, lower: Lowering, layout: tuple[Any, ...], bodies: Sequence[Body], argument_count: int, outs: tuple[Aval, ...]
) -> Signature:
    key = (name, layout, argument_count, outs, *[body.key for body in bodies])
    signature = _signatures.get(key)
    if signature is None:
        counts = [(len(body.held), len(body.seeds)) for body in bodies]
        kept = tuple(bodies_alone(bodies))

        def run(context: Context, *operands: Any) -> list[Any]:
            remaining = iter(operands)
            first = [next(remaining) for _ in range(argument_count)]
            captured, seeds = [], []
            for captured_count, seed_count in counts:
                captured.append([next(remaining) for _ in range(captured_count)])
                seeds.append([next(remaining) for _ in range(seed_count)])
            return lower(context, kept, Operands(first, captured, seeds))

        digest = "-".join(graph_hash(body.graph, [(feed.value, index) for feed, index in body.feeds])[:32] for body in bodies)
        total = argument_count + sum(captured_count + seed_count for captured_count, seed_count in counts)
        # After the operands, what distinguishes it from other operations of this name; its lowering ignores it.
        arguments = (*(PLACEHOLDER,) * total, repr(layout), digest)
        signature = remember(_signatures, key, Signature(f"xla.{name}", run, arguments, {}, outs, line=user_line(), has_bodies=True))
    return signature


def bodies_alone(bodies: Sequence[Body]) -> list[Body]:
    """The bodies without their captured values: signatures outlive the tensors of a call."""
    return [Body(body.graph, body.feeds, (), ()) for body in bodies]


def results_of(
    context: Context, body: Body, arguments: Sequence[Any], captured: Sequence[Any], seeds: Sequence[Any], checks: list[Check] | None
) -> list[Any]:
    """The results of a body over arrays, inside an operation with this context. checks: takes the body's checks of data."""
    lists = {Feed.GIVEN: arguments, Feed.HELD: captured, Feed.SEED: seeds}
    body_checks: list[tuple[int, Check]] | None = None if checks is None else []
    env = evaluate(body.graph, [lists[feed][index] for feed, index in body.feeds], context, checks=body_checks)
    if checks is not None:
        checks += [check for _, check in body_checks or ()]
    return [env[slot] for slot in body.graph.outs]


def seed_of_turn(seed: Any, turn: Any) -> Array:
    """The random state of one turn of a loop, a (2,) uint32 key."""
    word = lax.convert_element_type(turn, _UINT32)
    left, right = threefry2x32((seed[0], seed[1]), (word, lax.full_like(word, 0)))
    return lax.concatenate([lax.reshape(left, (1,)), lax.reshape(right, (1,))], 0)


class Findings:
    """The checks of a body whose values have to be carried out of it: tracing the body shows which checks there are."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.made: list[tuple[int, tuple[int, int]]] = []

    def collect(self) -> list[Check] | None:
        """A new list for the checks of a body; None if the program makes no checks."""
        return None if self._context.checks is None else []

    def values(self, checks: list[Check] | None) -> list[Array]:
        """The values of the checks that a body made."""
        self.made = [(check.fault, check.numbers) for check in checks or ()]
        return [check.value for check in checks or ()]

    def report(self, values: Sequence[Array]) -> None:
        """Add the checks to those of the operation. values: as `values` returned them, or a row of them with one for each turn."""
        for (fault, numbers), value in zip(self.made, values, strict=True):
            worst = lax.reduce_max(value, tuple(range(value.ndim)))
            if self._context.checks is not None:
                self._context.checks.append(Check(fault, worst, numbers))
