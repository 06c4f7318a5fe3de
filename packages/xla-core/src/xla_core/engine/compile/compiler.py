"""Turn a graph into a function that `jax.jit` compiles for a placement."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax

from xla_core.engine.compile.emit import Constants, Emitter, Scope, arrays_of, counts, evaluate, leaves_of, program
from xla_core.engine.compile.options import compiler_options
from xla_core.engine.compile.words import float_form, rows_of_words
from xla_core.engine.graph.entries import NamedLine, ScalarKind
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.signature import Signature
from xla_core.engine.placement.layout import Layout
from xla_core.engine.placement.placement import Placement
from xla_core.ops.checks import Check

Executable = Callable[..., Any]


def source_scope(name: str, line: str | None) -> AbstractContextManager[Any]:
    """Name the operation and the user's line in the compiled program: `aten.mm[train.py:17]`, `encoder/aten.mm[block.py:3<train.py:17]`.

    Without the file's folder, because / separates scopes; in brackets, because XLA drops what follows an @.
    """
    if isinstance(line, NamedLine):
        where = "<".join(caller.rpartition("/")[2] for caller in (line, *line.callers))
        return jax.named_scope("/".join((*line.scopes, f"{line.prefix}{name}[{where}]")))
    where = "unknown" if line is None else line.rpartition("/")[2]
    return jax.named_scope(f"{name}[{where}]")


def jitted(graph: Graph, constants: Constants, placement: Placement, layout: Layout, *, name: str, checked: bool) -> Any:
    """The graph as a `jax.jit` function over `(*buffers, *words)`, which `layout` has entered; compiles at its first call.

    name: of the module in profiles. checked: make checks of data. Raises (at that call) LoweringError for a lowering that fails.
    """
    run = layout.over_buffers(over_words(graph, constants, placement, source_scope, checked))
    run.__name__ = name
    has_loops = any([signature.has_bodies for signature in graph.parts.signatures])
    return jax.jit(
        run,
        keep_unused=True,
        donate_argnums=layout.donated,
        out_shardings=layout.out_shardings,
        compiler_options=compiler_options(placement.device.platform, has_loops),
    )


def readable(graph: Graph, constants: Constants, placement: Placement, layout: Layout, name: str) -> Any:
    """Like `jitted`, for printing only: no completion token, no checks of data."""
    run = layout.over_buffers(program(graph, constants, placement.context, source_scope, placement.manual_mesh))

    def without_token(*arguments: Any) -> tuple[Any, ...]:
        return tuple(run(*arguments)[:-1])

    without_token.__name__ = name
    inside = layout.out_shardings
    return jax.jit(without_token, keep_unused=True, out_shardings=inside[:-1] if isinstance(inside, tuple) else inside)


def checks_of(graph: Graph, constants: Constants, placement: Placement) -> list[tuple[int, Check]]:
    """The checks of data that the program of `graph` makes, with their operations' slots, in the order of its token. Traces it anew."""
    checks: list[tuple[int, Check]] = []

    def run(*arguments: Any) -> tuple[()]:
        evaluate(graph, leaves_of(graph, constants, arguments), placement.context, None, placement.manual_mesh, checks)
        return ()

    numbers = counts(graph.parts.scalars, constants)
    floats, ints, seeds = ([0] * numbers[kind] for kind in (ScalarKind.FLOAT, ScalarKind.INT, ScalarKind.SEED))
    packed = arrays_of([float(number) for number in floats], ints, seeds)
    leaves = [jax.ShapeDtypeStruct(aval.shape, aval.physical) for aval in graph.parts.leaves]
    with jax.enable_x64(True):
        jax.eval_shape(placement.spread(run), *leaves, *packed)
    return checks


def over_words(
    graph: Graph, constants: Constants, placement: Placement, scope: Scope | None, checked: bool, emitter: Emitter = Signature.emit
) -> Callable[..., Any]:
    """The graph as a function over values and one array of words, see `program`."""
    rows = partial(rows_of_words, float_form(graph, placement.context.platform))
    return program(graph, constants, placement.context, scope, placement.manual_mesh, checked, emitter, rows)
