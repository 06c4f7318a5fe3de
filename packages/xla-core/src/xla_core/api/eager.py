"""Eager mode: every operation compiles and runs as soon as it is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xla_core.base import metrics
from xla_core.base.metrics import CompileEvent, Event, ExecuteEvent, Unit
from xla_core.engine.runtime import client


class _Measuring:
    """The subscription that measures the times of eager operations; in eager mode only, because of its cost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: Callable[[], None] | None = None

    def switch(self, on: bool) -> None:
        with self._lock:
            if on and self._end is None:
                self._end = metrics.subscribe(_measure, CompileEvent, ExecuteEvent)
            elif not on and self._end is not None:
                self._end()
                self._end = None


_measuring = _Measuring()


def _measure(event: Event) -> None:
    if isinstance(event, (CompileEvent, ExecuteEvent)) and event.cause is None:  # None for eager operations: nobody asked for them
        name = "EagerOpCompileTime" if isinstance(event, CompileEvent) else "EagerOpExecuteTime"
        metrics.metric_add(name, event.duration_ns, Unit.DURATION_NS)


def is_eager_mode() -> bool:
    """True in eager mode, where every operation runs as soon as it is recorded."""
    return client.eager()


def eager_mode(enable: bool) -> None:
    """Switch eager mode on or off, for all devices and threads. Starts no client."""
    client.set_eager(enable)
    _measuring.switch(enable)


@contextmanager
def eager_mode_context(enable: bool) -> Iterator[None]:
    """Eager mode, or lazy mode, inside the block."""
    before = is_eager_mode()
    eager_mode(enable)
    try:
        yield
    finally:
        eager_mode(before)
