"""Run step closures in the caller's thread or in a background thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from xla_core.base import config

Closure = Callable[[], object]

_log = logging.getLogger(__name__)


class ClosureHandler:
    """Runs closures at once, in the caller's thread; an exception propagates, and `run_all` drops the remaining closures."""

    def run(self, closure: Closure) -> None:
        """Run one closure."""
        closure()

    def run_all(self, closures: Iterable[Closure]) -> None:
        """Run closures in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Hands closures to a background thread, which runs them in order and ends when it has nothing left to do.

    max_queue_size: `run` blocks while this many closures wait; XLA_MAX_ASYNC_QUEUE replaces it when set.

    A closure that raises ends the thread and drops the closures behind it; the next `run` raises RuntimeError chained to
    that exception, after which the handler works again. The thread is no daemon: at exit, waiting closures still run.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        super().__init__()
        self._max_queue_size = config.MAX_ASYNC_QUEUE.get() if config.MAX_ASYNC_QUEUE.is_set() else max_queue_size
        if self._max_queue_size < 1:
            raise ValueError(f"max_queue_size is {max_queue_size}, must be at least 1")
        self._changed = threading.Condition()
        self._waiting: deque[Closure] = deque()
        self._thread: threading.Thread | None = None
        self._failure: tuple[BaseException, int] | None = None

    def run(self, closure: Closure) -> None:
        """Queue one closure. Raises: RuntimeError if a closure has failed since the last call."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or len(self._waiting) < self._max_queue_size)
            self._raise_failure()
            self._waiting.append(closure)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="xla-step-closures")
                self._thread.start()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            (error, dropped), self._failure = self._failure, None
            raise RuntimeError(
                f"an earlier asynchronous step closure raised {error!r}; {dropped} closures behind it were dropped"
            ) from error

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._thread = None
                    return
                closure = self._waiting.popleft()
                self._changed.notify_all()
            try:
                closure()
            except BaseException as error:  # SystemExit too must reach the thread that queued the closure
                _log.error("asynchronous step closure failed; the next step that queues one will raise", exc_info=error)
                self._fail(error)
                return

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = (error, len(self._waiting))
            self._waiting.clear()
            self._thread = None
            self._changed.notify_all()
