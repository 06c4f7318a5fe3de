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
    """The operands of an operation as its lowering gets them. held, seeds: those of each body."""

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
    given: Sequence[torch.Tensor | Value],
    outs: Sequence[Aval],
) -> list[torch.Tensor]:
    """Record one operation over `given` and what its bodies hold; a tensor for each of `outs`.

    layout: all that `lower` knows besides, hashable, with the same text in every process.
    """

    def run(given: tuple[Any, ...], _: Any) -> list[torch.Tensor]:
        values = [one if isinstance(one, Value) else value_of(holder(one)) for one in given]
        return _recorded(recorder, name, lower, layout, bodies, values, outs)

    results: list[torch.Tensor] = wrapped(run)(tuple(given), {})
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
            for held in body.held:
                slots.append(
                    pending_graph.add_scalar(held.kind, held.number) if isinstance(held, HostNumber) else pending_graph.adopt(held)
                )
            slots += [pending_graph.add_scalar(SEED, seed) for seed in body.seeds]
        signature = _signature(name, lower, layout, bodies, len(values), tuple(outs))
        made = [value for value in define(recorder, pending_graph, signature, slots) if value is not None]
    if len(pending_graph.entries) > pending_graph.limit:
        relieve(recorder, made)
    return [wrap(value) for value in made]


def _signature(
    name: str, lower: Lowering, layout: tuple[Any, ...], bodies: Sequence[Body], given: int, outs: tuple[Aval, ...]
) -> Signature:
    key = (name, layout, given, outs, *[body.key for body in bodies])
    found = _signatures.get(key)
    if found is None:
        counts = [(len(body.held), len(body.seeds)) for body in bodies]
        kept = tuple(bodies_alone(bodies))

        def run(context: Context, *operands: Any) -> list[Any]:
            rest = iter(operands)
            first = [next(rest) for _ in range(given)]
            lists = [([next(rest) for _ in range(held)], [next(rest) for _ in range(seeds)]) for held, seeds in counts]
            return lower(context, kept, Operands(first, [held for held, _ in lists], [seeds for _, seeds in lists]))

        digest = "-".join(graph_hash(body.graph, [(feed.value, place) for feed, place in body.feeds])[:32] for body in bodies)
        total = given + sum(held + seeds for held, seeds in counts)
        # Behind the operands, what tells it from others of its name: its lowering knows them.
        arguments = (*(PLACEHOLDER,) * total, repr(layout), digest)
        found = remember(_signatures, key, Signature(f"xla.{name}", run, arguments, {}, outs, line=user_line(), has_bodies=True))
    return found


def bodies_alone(bodies: Sequence[Body]) -> list[Body]:
    """The bodies without what they hold: signatures outlive the tensors of a call."""
    return [Body(body.graph, body.feeds, (), ()) for body in bodies]


def results_of(
    context: Context, body: Body, given: Sequence[Any], held: Sequence[Any], seeds: Sequence[Any], checks: list[Check] | None
) -> list[Any]:
    """The results of a body over arrays, inside of an operation with this context. checks: takes those that its operations make of data."""
    lists = {Feed.GIVEN: given, Feed.HELD: held, Feed.SEED: seeds}
    found: list[tuple[int, Check]] | None = None if checks is None else []
    env = evaluate(body.graph, [lists[feed][place] for feed, place in body.feeds], context, checks=found)
    if checks is not None:
        checks += [check for _, check in found or ()]
    return [env[slot] for slot in body.graph.outs]


def seed_of_turn(seed: Any, turn: Any) -> Array:
    """The random state of one turn of a loop, a (2,) uint32 key."""
    word = lax.convert_element_type(turn, _UINT32)
    left, right = threefry2x32((seed[0], seed[1]), (word, lax.full_like(word, 0)))
    return lax.concatenate([lax.reshape(left, (1,)), lax.reshape(right, (1,))], 0)


class Findings:
    """The checks of a body whose values have to be carried out of it: what they are is known once the body was traced."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.made: list[tuple[int, tuple[int, int]]] = []

    def collect(self) -> list[Check] | None:
        """A list for the checks of a body; None if nobody asks for them."""
        return None if self._context.checks is None else []

    def values(self, checks: list[Check] | None) -> list[Array]:
        """The values of the checks that a body made."""
        self.made = [(check.fault, check.numbers) for check in checks or ()]
        return [check.value for check in checks or ()]

    def report(self, values: Sequence[Array]) -> None:
        """Make the checks those of the operation. values: as `values` gave them, or one for each turn."""
        for (fault, numbers), value in zip(self.made, values, strict=True):
            worst = lax.reduce_max(value, tuple(range(value.ndim)))
            if self._context.checks is not None:
                self._context.checks.append(Check(fault, worst, numbers))
