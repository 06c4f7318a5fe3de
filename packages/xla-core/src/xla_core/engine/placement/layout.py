"""How the buffers of one program enter and leave it, over a mesh: padding, order of devices, requested shardings."""

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

    over_buffers: turns a function over values into one over buffers. donated: indices of the arguments whose buffers results take over.
    out_shardings: as `jax.jit` takes them. enter: turns the arguments into those of the program; None: they are the same. outside: turns
    the program into a function over the arguments as they are; None: it is one.
    """

    over_buffers: Callable[[Function], Function]
    donated: tuple[int, ...]
    out_shardings: Any
    enter: Callable[[list[Any]], list[Any]] | None = None
    outside: Callable[[Function], Function] | None = None


def mesh_layout(
    graph: Graph, buffer_shardings: Sequence[jax.sharding.Sharding], default: NamedSharding, manual: NamedSharding, replicate: bool = False
) -> Layout:
    """The layout of a program over a mesh.

    buffer_shardings: of its arguments that are buffers. default: the sharding of buffers without one of their own; manual: of manual
    values. replicate: replicate results without a sharding, instead of letting the compiler choose.
    """
    # Where no argument says on which devices the program runs, its results do.
    otherwise = default if replicate or not graph.parts.leaves else None
    requested = [_requested(graph, slot, aval, manual) for slot, aval in zip(graph.outs, graph.parts.results, strict=True)]
    inherited = _inherited(graph, requested, default, buffer_shardings)
    # For each result, and for the token.
    shardings = (*[own or leaf or otherwise for own, leaf in zip(requested, inherited, strict=True)], otherwise)
    leaves = graph.parts.leaves

    def value(buffer: Any, aval: Aval, sharding: Any) -> Any:
        return buffer if aval.manual else unpadded(entered(buffer, sharding, default), aval.shape)

    def over_buffers(function: Function) -> Function:
        def run(*arguments: Any) -> tuple[Any, ...]:
            buffers, packed = arguments[: len(leaves)], arguments[len(leaves) :]
            results = function(*map(value, buffers, leaves, buffer_shardings or [default] * len(leaves)), *packed)
            return tuple(left(padded(result, sharding), sharding, default) for result, sharding in zip(results, shardings, strict=True))

        return run

    def enter(arguments: list[Any]) -> list[Any]:
        buffers = [_in_order(argument, sharding, default) for argument, sharding in zip(arguments, buffer_shardings, strict=False)]
        return [*buffers, *arguments[len(buffer_shardings) :]]

    return Layout(
        over_buffers,
        _donated(graph, buffer_shardings, shardings),
        tuple(in_order_of(sharding, default) for sharding in shardings),
        enter,
        lambda function: relabelling(function, buffer_shardings, shardings, default),
    )


def _in_order(argument: Any, sharding: Any, default: Any) -> Any:
    """A buffer in the program's order of devices (device_order.py)."""
    inside = in_order_of(sharding, default)
    return argument if inside is sharding else relabelled(argument, inside)


def _donated(graph: Graph, buffer_shardings: Sequence[jax.sharding.Sharding], shardings: Sequence[Any]) -> tuple[int, ...]:
    """The donated leaves whose buffers a result can take over, padding included."""
    parts = graph.parts
    # How many results of each stored shape and dtype have no buffer yet.
    free = Counter(_stored(aval, sharding) for aval, sharding in zip(parts.results, shardings, strict=False))
    usable = []
    for index in parts.donated:
        stored = _stored(parts.leaves[index], buffer_shardings[index] if buffer_shardings else None)
        if free[stored]:
            free[stored] -= 1
            usable.append(index)
    return tuple(usable)


def _stored(aval: Aval | None, sharding: Any) -> tuple[Any, ...] | None:
    """Shape and dtype of a buffer."""
    if aval is None:
        return None
    return aval.shape if aval.manual else stored_shape(aval.shape, sharding), aval.physical


def _inherited(
    graph: Graph,
    requested: Sequence[NamedSharding | None],
    default: jax.sharding.Sharding,
    buffer_shardings: Sequence[jax.sharding.Sharding],
) -> list[jax.sharding.Sharding | None]:
    """For each result that may have any sharding, the sharding of the leaves that it can take over; None where it is ambiguous.

    So the state that a step updates keeps its sharding, and the next step is the same program. Of several leaves, a replicated one decides.
    """
    shardings: dict[Any, list[jax.sharding.Sharding]] = {}
    leaves = graph.parts.leaves
    for index, sharding in enumerate(buffer_shardings):
        if (index in graph.dead or leaves[index].small) and not leaves[index].manual:
            shape = (leaves[index].shape, leaves[index].physical)
            shardings.setdefault(shape, []).append(default if sharding.is_fully_replicated else sharding)
    shapes = [None if aval is None else (aval.shape, aval.physical) for aval in graph.parts.results]
    for shape_of_result, sharding_of_result in zip(shapes, requested, strict=True):
        if sharding_of_result is not None and sharding_of_result in shardings.get(shape_of_result, ()):
            shardings[shape_of_result].remove(sharding_of_result)
    inherited: list[jax.sharding.Sharding | None] = []
    for shape_of_result in shapes:
        candidates = set(shardings.get(shape_of_result, ()))
        inherited.append(default if default in candidates else candidates.pop() if len(candidates) == 1 else None)
    return inherited


def _requested(graph: Graph, slot: int, aval: Aval | None, manual: NamedSharding) -> NamedSharding | None:
    """The sharding that was requested for a result."""
    if aval is not None and aval.manual:
        return manual
    sharding = sharding_at(graph.entries, slot)
    return None if sharding is None else sharding.named
