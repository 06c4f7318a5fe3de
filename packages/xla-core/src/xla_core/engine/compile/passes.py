"""Graph passes: functions that see each program before it is compiled, and may replace it.

They run when memory holds no executable for a program, never per step. The registered passes are part of a program's key in memory; its
key on disk is the key of the program that they made.
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

    It returns another graph, made by `replace`, `insert_before` and `remove`, or None to leave the program as it is. It must depend on
    nothing but the graph: programs compiled with it are found again as long as the same passes are registered.
    """
    # A pass that cannot be hashed gets an object of its own as key, so that programs of other passes are never found for it.
    entry = (graph_pass if isinstance(graph_pass, Hashable) else object(), graph_pass)
    _passes.append(entry)
    return lambda: _passes.remove(entry)


def pass_keys() -> tuple[Hashable, ...]:
    """The registered passes, as part of a program's key in memory."""
    return tuple([key for key, _ in _passes])


def passed(graph: Graph) -> Graph:
    """The program that all passes together make of `graph`.

    Raises PluginError, which names the pass, if one fails or does not make a legal program; an XlaError that a pass raises stays as it is.
    """
    for _, graph_pass in tuple(_passes):
        try:
            changed = graph_pass(graph)
            if changed is not None and changed is not graph:
                graph = _checked(graph, changed)
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


def _checked(before: Graph, after: GraphView) -> Graph:
    """Return `after`. Raises GraphEditError or InternalError unless it has the inputs, results and side effects of `before`."""
    if not isinstance(after, Graph):
        raise GraphEditError(f"it gave {after!r}, a pass gives a graph or None")
    verify_structure(after)
    if _inputs(before) != _inputs(after) or before.dead != after.dead:
        raise GraphEditError(
            "inputs and numbers that enter the program must stay, in their order: what needs them no more leaves them unused"
        )
    if len(before.outs) != len(after.outs):
        raise GraphEditError(f"the program has {len(before.outs)} results, not {len(after.outs)}")
    for index, (old, new) in enumerate(zip(before.outs, after.outs, strict=True)):
        old_aval, new_aval = before.parts.avals[old], after.parts.avals[new]
        # Avals are interned.
        if old_aval is not new_aval:
            raise GraphEditError(f"result {index} of the program is {old_aval}, not {new_aval}")
        if sharding_at(before.entries, old) != sharding_at(after.entries, new):
            raise GraphEditError(f"result {index} of the program was given a sharding, which must stay")
    if _effects(before) != _effects(after):
        raise GraphEditError("operations with side effects, such as collectives, must stay as they are, in their order")
    return after


def _inputs(graph: Graph) -> list[Entry]:
    return [graph.entries[slot] for slot in graph.parts.inputs]


def _effects(graph: Graph) -> list[object]:
    return [signature for signature in graph.parts.signatures if signature.has_side_effects]
