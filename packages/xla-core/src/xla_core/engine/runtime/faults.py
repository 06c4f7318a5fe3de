"""Read the error words that programs return, and raise the errors that they describe."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import jax
import numpy as np

from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.ops.checks import error_of


@dataclass(frozen=True, slots=True)
class _UnreadWord:
    """The error word of a launched program."""

    word: jax.Array
    graph: Graph


_unread: dict[Recorder, deque[_UnreadWord]] = {}


def expect(recorder: Recorder, word: jax.Array, graph: Graph) -> None:
    """Keep `word`, to be read by `look`."""
    _unread.setdefault(recorder, deque()).append(_UnreadWord(word, graph))


def look(recorder: Recorder, wait: bool) -> None:
    """Raise the error that a finished program found in its data, as torch does on the CPU, with the user's line.

    wait: for all launched programs; else stop at the first that still runs.
    """
    unread = _unread.get(recorder)
    while unread:
        try:
            launched = unread.popleft()
        except IndexError:
            return  # another thread looks at it
        if not wait and not launched.word.is_ready():  # type: ignore[attr-defined]
            unread.appendleft(launched)
            return
        try:
            word = np.asarray(launched.word)
        except RuntimeError:
            continue  # the program failed: its results say so
        if word[0]:
            raise _error(launched.graph, [int(number) for number in word])


def _error(graph: Graph, word: list[int]) -> Exception:
    slot, fault, value, *numbers = word
    name = graph.entries[slot - 1][0].name  # type: ignore[index]
    line = graph.line(slot - 1)
    where = f" ({name}, recorded at {line})" if line else f" ({name})"
    return error_of(fault, value, (numbers[0], numbers[1]), where)
