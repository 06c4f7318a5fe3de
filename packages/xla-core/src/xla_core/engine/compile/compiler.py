"""Build an executable for a graph: trace and compile with `jax.jit`, or load it from the on-disk cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xla_core.base import config
from xla_core.engine.compile.emit import Constants, program
from xla_core.engine.compile.options import compiler_options
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import NamedLine
from xla_core.engine.graph.graph import Graph, aval_at
from xla_core.engine.placement.device_order import entered, in_order_of, left
from xla_core.engine.placement.manual import manual_sharding
from xla_core.engine.placement.sharding import padded, sharding_at, spans_devices, stored_shape, unpadded
from xla_core.ops.table import Context

Executable = Callable[..., Any]


def source_scope(name: str, line: str | None) -> AbstractContextManager[Any]:
    """Names the operation and the user's line in the compiled program: `aten.mm[train.py:17]`, `encoder/aten.mm[block.py:3<train.py:17]`.

    Of the file the name alone, because / parts scopes; in brackets, because XLA drops what follows an @.
    """
    if isinstance(line, NamedLine):
        where = "<".join(each.rpartition("/")[2] for each in (line, *line.callers))
        return jax.named_scope("/".join((*line.scopes, f"{line.prefix}{name}[{where}]")))
    where = "unknown" if line is None else line.rpartition("/")[2]
    return jax.named_scope(f"{name}[{where}]")


def donated_arguments(graph: Graph) -> tuple[int, ...]:
    """The dead leaves that some result can take over (same shape and dtype), as argument numbers."""
    leaves = [entry for entry in graph.entries if type(entry) is Aval]
    wanted = Counter(_shape_and_dtype(aval_at(graph.entries, slot)) for slot in graph.outs)
    donated = []
    for number in graph.dead:
        kind = _shape_and_dtype(leaves[number])
        if wanted[kind]:
            wanted[kind] -= 1
            donated.append(number)
    return tuple(donated)


def _donated_buffers(graph: Graph, given: Sequence[jax.sharding.Sharding], shardings: Any) -> tuple[int, ...]:
    """Those of `donated_arguments` whose buffers a result can take over, padding included."""
    donated = donated_arguments(graph)
    if not isinstance(shardings, tuple):
        return donated
    leaves = [entry for entry in graph.entries if type(entry) is Aval]
    wanted = Counter(_stored(aval_at(graph.entries, slot), sharding) for slot, sharding in zip(graph.outs, shardings, strict=False))
    usable = []
    for number in donated:
        kind = _stored(leaves[number], given[number] if given else None)
        if wanted[kind]:
            wanted[kind] -= 1
            usable.append(number)
    return tuple(usable)


def _stored(aval: Aval | None, sharding: Any) -> tuple[Any, ...] | None:
    """Shape and dtype of a buffer."""
    return _shape_and_dtype(aval) if aval is None or aval.manual else (stored_shape(aval.shape, sharding), aval.physical)


def _shape_and_dtype(aval: Aval | None) -> tuple[Any, ...] | None:
    return None if aval is None else (aval.shape, aval.physical)


def jitted(
    graph: Graph,
    constants: Constants,
    default: jax.sharding.Sharding,
    name: str,
    given: Sequence[jax.sharding.Sharding] = (),
    replicate: bool = False,
) -> Any:
    """The graph as a `jax.jit` function over `(*buffers, *packed)`; compiles at its first call.

    default: the sharding of buffers without one of their own. name: of the module in profiles. given: the shardings of the buffers, in SPMD
    mode. replicate: in SPMD mode, results without a sharding are replicated, not sharded as the compiler likes.
    Raises (at that call) LoweringError for a lowering that fails.
    """
    shardings = result_shardings(graph, default, given, replicate)
    run = across_replicas(program(graph, constants, context_of(default), source_scope, default, config.CHECKS.get()), default)
    run = _over_buffers(run, graph, default, given, shardings)
    run.__name__ = name
    has_loops = any(type(entry) is tuple and entry[0].has_bodies for entry in graph.entries)
    return jax.jit(
        run,
        keep_unused=True,
        donate_argnums=_donated_buffers(graph, given, shardings),
        out_shardings=_in_order(shardings, default),
        compiler_options=compiler_options(devices_of(default)[0].platform, has_loops),
    )


def readable(
    graph: Graph, constants: Constants, default: jax.sharding.Sharding, name: str, given: Sequence[jax.sharding.Sharding] = ()
) -> Any:
    """As `jitted`, to be looked at and not to be run: without what it returns beside its results, and without tests of data."""
    shardings = result_shardings(graph, default, given)
    run = _over_buffers(
        across_replicas(program(graph, constants, context_of(default), source_scope, default), default), graph, default, given, shardings
    )

    def shown(*arguments: Any) -> tuple[Any, ...]:
        return tuple(run(*arguments)[:-1])

    shown.__name__ = name
    inside = _in_order(shardings, default)
    return jax.jit(shown, keep_unused=True, out_shardings=inside[:-1] if isinstance(inside, tuple) else inside)


def _over_buffers(
    function: Callable[..., Any], graph: Graph, default: jax.sharding.Sharding, given: Sequence[jax.sharding.Sharding], shardings: Any
) -> Callable[..., Any]:
    """`function`, over buffers that may have padding and another order of devices. shardings: of the results, in SPMD mode."""
    if not isinstance(shardings, tuple):
        return function
    leaves = [entry for entry in graph.entries if type(entry) is Aval]

    def value(buffer: Any, aval: Aval, sharding: Any) -> Any:
        return buffer if aval.manual else unpadded(entered(buffer, sharding, default), aval.shape)

    def run(*arguments: Any) -> tuple[Any, ...]:
        buffers, packed = arguments[: len(leaves)], arguments[len(leaves) :]
        results = function(*map(value, buffers, leaves, given or [default] * len(leaves)), *packed)
        return tuple(left(padded(result, each), each, default) for result, each in zip(results, shardings, strict=True))

    return run


def _in_order(shardings: Any, default: jax.sharding.Sharding) -> Any:
    return tuple(in_order_of(each, default) for each in shardings) if isinstance(shardings, tuple) else shardings


def result_shardings(graph: Graph, default: jax.sharding.Sharding, given: Sequence[jax.sharding.Sharding], replicate: bool = False) -> Any:
    """The explicit shardings of a program's results: as asked for, of state, and of all if no argument says where it runs.

    In SPMD mode a tuple, with one for the token.
    """
    free = not replicate and any(type(entry) is Aval for entry in graph.entries)
    otherwise = None if free else default
    if not spans_devices(default):
        return otherwise
    asked = [_sharding_at(graph, slot, default) for slot in graph.outs]
    kept = _kept_shardings(graph, asked, default, given)
    return (*[one or another or otherwise for one, another in zip(asked, kept, strict=True)], otherwise)


def _kept_shardings(
    graph: Graph,
    asked: Sequence[NamedSharding | None],
    default: jax.sharding.Sharding,
    given: Sequence[jax.sharding.Sharding],
) -> list[jax.sharding.Sharding | None]:
    """For results that may have any sharding, that of the leaves that they can take over; None where it is not clear.

    So state that a step updates stays as it is sharded, and the next step is the same program. Of several leaves, a replicated one decides.
    """
    shardings: dict[Any, list[jax.sharding.Sharding]] = {}
    leaves = [entry for entry in graph.entries if type(entry) is Aval]
    for number, sharding in enumerate(given):
        if (number in graph.dead or leaves[number].small) and not leaves[number].manual:
            shardings.setdefault(_shape_and_dtype(leaves[number]), []).append(default if sharding.is_fully_replicated else sharding)
    kinds = [_shape_and_dtype(aval_at(graph.entries, slot)) for slot in graph.outs]
    for kind, wanted in zip(kinds, asked, strict=True):
        if wanted is not None and wanted in shardings.get(kind, ()):
            shardings[kind].remove(wanted)
    found: list[jax.sharding.Sharding | None] = []
    for kind in kinds:
        candidates = set(shardings.get(kind, ()))
        found.append(default if default in candidates else candidates.pop() if len(candidates) == 1 else None)
    return found


def _sharding_at(graph: Graph, slot: int, default: jax.sharding.Sharding) -> NamedSharding | None:
    aval = aval_at(graph.entries, slot)
    if aval is not None and aval.manual:
        return manual_sharding(default)
    sharding = sharding_at(graph.entries, slot)
    return None if sharding is None else sharding.named


def across_replicas(function: Callable[..., Any], default: jax.sharding.Sharding) -> Callable[..., Any]:
    """`function` as each replica runs it over its own shard of buffers with this sharding: collectives inside reach the others."""
    if not isinstance(default, NamedSharding) or spans_devices(default):
        return function
    replicated = PartitionSpec()
    mapped: Callable[..., Any] = jax.shard_map(function, mesh=default.mesh, in_specs=replicated, out_specs=replicated, check_vma=False)
    return mapped


def devices_of(sharding: jax.sharding.Sharding) -> list[jax.Device]:
    """The devices that run a program over buffers with this sharding, in the program's order."""
    return list(sharding.mesh.devices.flat) if isinstance(sharding, NamedSharding) else list(sharding.device_set)


def context_of(default: jax.sharding.Sharding) -> Context:
    """The context of a program over buffers with this sharding, without results: it says what the program is compiled for."""
    mesh = default.mesh if isinstance(default, NamedSharding) else None
    return Context((), platform=devices_of(default)[0].platform, mesh=mesh if isinstance(mesh, Mesh) else None)
