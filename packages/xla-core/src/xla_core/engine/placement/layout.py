"""How the buffers of one program enter and leave it, over a mesh: with padding, in another order of devices, and sharded as asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.graph import Graph
from xla_core.engine.placement.device_order import entered, in_order_of, left, relabelled, relabelling
from xla_core.engine.placement.sharding import padded, sharding_at, stored_shape, unpadded

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the buffers of one program enter and leave it.

    over_buffers: makes of a function over values one over buffers. donated: the arguments whose buffers results take over. out_shardings:
    as `jax.jit` takes them. enter: gives the arguments as the program takes them. outside: makes of the program one over the buffers as
    they are. None: they are the same.
    """

    over_buffers: Callable[[Function], Function]
    donated: tuple[int, ...]
    out_shardings: Any
    enter: Callable[[list[Any]], list[Any]] | None = None
    outside: Callable[[Function], Function] | None = None


def mesh_layout(
    graph: Graph, given: Sequence[jax.sharding.Sharding], default: NamedSharding, manual: NamedSharding, replicate: bool = False
) -> Layout:
    """The layout of a program over a mesh.

    given: the shardings of its buffers. default: of those without one of their own; manual: of manual values. replicate: results without a
    sharding are replicated, not sharded as the compiler likes.
    """
    # Where no argument says on which devices the program runs, its results do.
    otherwise = default if replicate or not graph.parts.leaves else None
    asked = [_asked(graph, slot, aval, manual) for slot, aval in zip(graph.outs, graph.parts.results, strict=True)]
    kept = _kept(graph, asked, default, given)
    # One for each result, and one for the token.
    shardings = (*[one or another or otherwise for one, another in zip(asked, kept, strict=True)], otherwise)
    leaves = graph.parts.leaves

    def value(buffer: Any, aval: Aval, sharding: Any) -> Any:
        return buffer if aval.manual else unpadded(entered(buffer, sharding, default), aval.shape)

    def over_buffers(function: Function) -> Function:
        def run(*arguments: Any) -> tuple[Any, ...]:
            buffers, packed = arguments[: len(leaves)], arguments[len(leaves) :]
            results = function(*map(value, buffers, leaves, given or [default] * len(leaves)), *packed)
            return tuple(left(padded(result, each), each, default) for result, each in zip(results, shardings, strict=True))

        return run

    def enter(arguments: list[Any]) -> list[Any]:
        buffers = [_in_order(argument, sharding, default) for argument, sharding in zip(arguments, given, strict=False)]
        return [*buffers, *arguments[len(given) :]]

    return Layout(
        over_buffers,
        _donated(graph, given, shardings),
        tuple(in_order_of(each, default) for each in shardings),
        enter,
        lambda function: relabelling(function, given, shardings, default),
    )


def _in_order(argument: Any, sharding: Any, default: Any) -> Any:
    """A buffer as it enters a program (device_order.py)."""
    inside = in_order_of(sharding, default)
    return argument if inside is sharding else relabelled(argument, inside)


def _donated(graph: Graph, given: Sequence[jax.sharding.Sharding], shardings: Sequence[Any]) -> tuple[int, ...]:
    """Those of the donated leaves whose buffers a result can take over, padding included."""
    parts = graph.parts
    wanted = Counter(_stored(aval, sharding) for aval, sharding in zip(parts.results, shardings, strict=False))
    usable = []
    for number in parts.donated:
        kind = _stored(parts.leaves[number], given[number] if given else None)
        if wanted[kind]:
            wanted[kind] -= 1
            usable.append(number)
    return tuple(usable)


def _stored(aval: Aval | None, sharding: Any) -> tuple[Any, ...] | None:
    """Shape and dtype of a buffer."""
    if aval is None:
        return None
    return aval.shape if aval.manual else stored_shape(aval.shape, sharding), aval.physical


def _kept(
    graph: Graph, asked: Sequence[NamedSharding | None], default: jax.sharding.Sharding, given: Sequence[jax.sharding.Sharding]
) -> list[jax.sharding.Sharding | None]:
    """For results that may have any sharding, that of the leaves that they can take over; None where it is not clear.

    So state that a step updates stays as it is sharded, and the next step is the same program. Of several leaves, a replicated one decides.
    """
    shardings: dict[Any, list[jax.sharding.Sharding]] = {}
    leaves = graph.parts.leaves
    for number, sharding in enumerate(given):
        if (number in graph.dead or leaves[number].small) and not leaves[number].manual:
            kind = (leaves[number].shape, leaves[number].physical)
            shardings.setdefault(kind, []).append(default if sharding.is_fully_replicated else sharding)
    kinds = [None if aval is None else (aval.shape, aval.physical) for aval in graph.parts.results]
    for kind_of_result, wanted in zip(kinds, asked, strict=True):
        if wanted is not None and wanted in shardings.get(kind_of_result, ()):
            shardings[kind_of_result].remove(wanted)
    kept: list[jax.sharding.Sharding | None] = []
    for kind_of_result in kinds:
        candidates = set(shardings.get(kind_of_result, ()))
        kept.append(default if default in candidates else candidates.pop() if len(candidates) == 1 else None)
    return kept


def _asked(graph: Graph, slot: int, aval: Aval | None, manual: NamedSharding) -> NamedSharding | None:
    """The sharding that was asked for a result."""
    if aval is not None and aval.manual:
        return manual
    sharding = sharding_at(graph.entries, slot)
    return None if sharding is None else sharding.named
