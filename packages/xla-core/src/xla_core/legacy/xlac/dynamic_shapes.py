"""Sessions that limit how many distinct graphs a part of a program makes, to find shapes that change from step to step."""

from __future__ import annotations

import threading
from collections.abc import Callable

from xla_core.api.graph_limit import GraphLimit


class _Detector:
    """The sessions of this process by name, and their limit. Threads may enter a session again."""

    def __init__(self) -> None:
        self.limit = 1
        self.sessions: dict[str, GraphLimit] = {}


class _Session(threading.local):
    """Ends this thread's session."""

    end: Callable[[], None] | None = None


_detector = _Detector()
_entered = _Session()


def _dynamic_shape_detector_set_max_different_graphs(count: int) -> None:
    """Let each session make at most `count` distinct graphs. Raises ValueError for less than one."""
    if count < 1:
        raise ValueError(f"a session makes at least one graph, its limit cannot be {count}")
    _detector.limit = count


def _dynamic_shape_detector_get_max_different_graphs() -> int:
    """The largest number of distinct graphs for each session."""
    return _detector.limit


def _dynamic_shape_detector_start_session(name: str) -> None:
    """Count graphs that this thread runs for the session `name`, until `_dynamic_shape_detector_end_session`.

    The first graph past the limit raises RuntimeError, which shows how it differs. Raises RuntimeError in a thread that is in a session.
    """
    if _entered.end is not None:
        raise RuntimeError(f"a session is open: end it by _dynamic_shape_detector_end_session before {name!r} starts")
    session = _detector.sessions.setdefault(name, GraphLimit(f"session {name!r}", _dynamic_shape_detector_get_max_different_graphs))
    _entered.end = session.watch()


def _dynamic_shape_detector_end_session() -> None:
    """End this thread's session, if there is one. Its graphs are remembered."""
    if _entered.end is not None:
        _entered.end()
        _entered.end = None


def _dynamic_shape_detector_remove_session(name: str) -> None:
    """Forget a session and its graphs; an unknown name is no error."""
    _detector.sessions.pop(name, None)
