"""Limit how many distinct graphs a part of a program may run, and show how the first graph past the limit differs from the last."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

from xla_core.base.errors import TooManyGraphsError
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.text import graph_text
from xla_core.engine.runtime.executor import watch_graphs

_SHOWN = 20  # lines of a difference


class GraphLimit:
    """The distinct graphs that one part of a program has run. label: names that part in the error. limit: returns the limit now."""

    def __init__(self, label: str, limit: Callable[[], int]) -> None:
        self._label = label
        self._limit = limit
        self._seen: set[Any] = set()
        self._last: Graph | None = None

    def watch(self) -> Callable[[], None]:
        """Count the graphs that this thread runs from now on; returns a function that stops it.

        The first graph past the limit raises TooManyGraphsError, before it runs.
        """
        thread = threading.get_ident()

        def see(graph: Graph) -> None:
            if threading.get_ident() != thread:
                return
            if graph.key not in self._seen:
                self._check(graph)
                self._seen.add(graph.key)
            self._last = graph

        return watch_graphs(see)

    def _check(self, graph: Graph) -> None:
        limit = self._limit()
        if len(self._seen) < limit:
            return
        before = [] if self._last is None else graph_text(self._last).splitlines()
        lines = difflib.unified_diff(before, graph_text(graph).splitlines(), "the last graph", "this graph", n=0, lineterm="")
        raise TooManyGraphsError(
            f"{self._label} makes more than max_different_graphs={limit} distinct graphs: keep shapes and Python branches the same in "
            "each call, or raise the limit. The difference begins with:\n" + "\n".join(islice(lines, _SHOWN))
        )
