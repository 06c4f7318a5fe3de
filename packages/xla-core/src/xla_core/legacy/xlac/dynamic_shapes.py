"""Sessions that notice when a part of a program makes ever new graphs, as shapes that change from step to step do."""

from __future__ import annotations

import threading
from collections.abc import Callable

from xla_core.api.graph_limit import GraphLimit


class _Detector:
    """The sessions of this process by name; each may be entered again and again."""

    def __init__(self) -> None:
        self.limit = 1
        self.sessions: dict[str, GraphLimit] = {}


class _Entered(threading.local):
    """What ends the session that this thread is in."""

    end: Callable[[], None] | None = None


_detector = _Detector()
_entered = _Entered()


def _dynamic_shape_detector_set_max_different_graphs(count: int) -> None:
    """Let each session make so many distinct graphs. Raises ValueError for less than one."""
    if count < 1:
        raise ValueError(f"a session makes at least one graph, its limit cannot be {count}")
    _detector.limit = count


def _dynamic_shape_detector_get_max_different_graphs() -> int:
    """The number of distinct graphs that each session may make."""
    return _detector.limit


def _dynamic_shape_detector_start_session(name: str) -> None:
    """Count what this thread runs to the session `name`, until `_dynamic_shape_detector_end_session`.

    The first graph past the limit raises RuntimeError, which shows how it differs. Raises RuntimeError in a thread that is in a session.
    """
    if _entered.end is not None:
        raise RuntimeError(f"a session is open: end it by _dynamic_shape_detector_end_session before {name!r} starts")
    session = _detector.sessions.setdefault(name, GraphLimit(f"session {name!r}", _dynamic_shape_detector_get_max_different_graphs))
    _entered.end = session.watch()


def _dynamic_shape_detector_end_session() -> None:
    """End the session of this thread, if it is in one; its graphs are remembered."""
    if _entered.end is not None:
        _entered.end()
        _entered.end = None


def _dynamic_shape_detector_remove_session(name: str) -> None:
    """Forget the graphs of a session; one that is not there is no error."""
    _detector.sessions.pop(name, None)
