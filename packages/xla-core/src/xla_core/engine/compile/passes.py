"""Graph passes: functions that see each program before it is compiled, and may give another in its place.

They run when memory holds no executable for a program, never per step. The passes that are registered are part of its key in memory;
the key on disk is that of the program which they made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from xla_core.base.errors import GraphEditError, InternalError, PluginError, RegistrationError, XlaError, described
from xla_core.engine.compile.verify import verify_structure
from xla_core.engine.graph.entries import Entry
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.view import GraphView
from xla_core.engine.placement.sharding import sharding_at

GraphPass = Callable[[GraphView], GraphView | None]
_passes: list[tuple[Hashable, GraphPass]] = []


def register_pass(graph_pass: GraphPass) -> Callable[[], None]:
    """Run `graph_pass` on each program before it is compiled, after those registered earlier; returns a function that removes it.

    It gives another graph, made by `replace`, `insert_before` and `remove`, or None to leave the program as it is. It must depend on
    nothing but the graph: programs compiled with it are found again as long as the same passes are registered.
    """
    # One that cannot be hashed is known by an object of its own: no other one's programs are found for it.
    entry = (graph_pass if isinstance(graph_pass, Hashable) else object(), graph_pass)
    _passes.append(entry)
    return lambda: _passes.remove(entry)


def pass_keys() -> tuple[Hashable, ...]:
    """The registered passes, as the key of a program in memory needs them."""
    return tuple([key for key, _ in _passes])


def passed(graph: Graph) -> Graph:
    """The program that all passes together make of `graph`.

    Raises PluginError, which names the pass, if one fails or makes what is no legal program in its place; other errors of ours that a
    pass raises are left as they are.
    """
    for _, graph_pass in tuple(_passes):
        try:
            made = graph_pass(graph)
            if made is not None and made is not graph:
                graph = _checked(graph, made)
        except (GraphEditError, InternalError, RegistrationError) as error:
            raise PluginError(f"the graph pass {described(graph_pass)} makes no legal program: {error}") from error
        except XlaError:
            raise
        except Exception as error:
            raise PluginError(
                f"the graph pass {described(graph_pass)} raised {type(error).__name__}: {error}. Mend it, or remove it with the function "
                "that register_pass gave"
            ) from error
    return graph


def _checked(before: Graph, made: GraphView) -> Graph:
    """`made`. Raises GraphEditError or InternalError unless it can stand for `before`: same inputs, results and effects on others."""
    if not isinstance(made, Graph):
        raise GraphEditError(f"it gave {made!r}, a pass gives a graph or None")
    verify_structure(made)
    if _inputs(before) != _inputs(made) or before.dead != made.dead:
        raise GraphEditError(
            "inputs and numbers that enter the program must stay, in their order: what needs them no more leaves them unused"
        )
    if len(before.outs) != len(made.outs):
        raise GraphEditError(f"the program has {len(before.outs)} results, not {len(made.outs)}")
    for number, (old, new) in enumerate(zip(before.outs, made.outs, strict=True)):
        wanted, found = before.parts.avals[old], made.parts.avals[new]
        # Avals are interned.
        if wanted is not found:
            raise GraphEditError(f"result {number} of the program is {wanted}, not {found}")
        if sharding_at(before.entries, old) != sharding_at(made.entries, new):
            raise GraphEditError(f"result {number} of the program was given a sharding, which must stay")
    if _effects(before) != _effects(made):
        raise GraphEditError("operations with side effects, such as collectives, must stay as they are, in their order")
    return made


def _inputs(graph: Graph) -> list[Entry]:
    return [graph.entries[slot] for slot in graph.parts.inputs]


def _effects(graph: Graph) -> list[object]:
    return [signature for signature in graph.parts.signatures if signature.has_side_effects]
