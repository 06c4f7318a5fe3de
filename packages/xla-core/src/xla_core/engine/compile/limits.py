"""Refuse a program that the compiler of a platform cannot take, before it sees it: some end the process."""

from __future__ import annotations

from xla_core.base.errors import LoweringError
from xla_core.engine.graph.graph import Graph
from xla_core.ops.limits import Limit, limit_of


def check(graph: Graph, platform: str) -> None:
    """Raise LoweringError, with the line of the operation, for a program with an operation that a limit of the platform holds for.

    Recording refuses most of them; these came in otherwise: as reads of views, as uploads, by a pass, or recorded for another platform.
    """
    for slot, aval in enumerate(graph.parts.avals):
        entry = graph.entries[graph.parts.makers[slot]]
        operator, named = (entry[0].target, entry[0].named_dtypes()) if type(entry) is tuple else ("", ())
        limit = limit_of(platform, operator, named, () if aval is None else (aval.dtype,))
        if limit is not None:
            raise _refusal(graph, slot, f"{operator if aval is None else aval}", platform, limit)


def _refusal(graph: Graph, slot: int, what: str, platform: str, limit: Limit) -> LoweringError:
    line = graph.line(graph.parts.makers[slot])
    where = f" recorded at {line}" if line else ""
    error = LoweringError(f"{what}{where} cannot be compiled for {platform}: {limit.reason}; {limit.advice}")
    error.place = graph, slot
    return error
