"""SIGTERM, which says that this process is to end: noted here, acted upon between two steps."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class _Watch:
    """The state of SIGTERM: the handler before, and whether it has come. One for all managers of a process."""

    def __init__(self) -> None:
        self.received = False
        self._earlier: Any = None
        self._handler: Any = None
        self._mask: set[Any] = set()

    def start(self) -> None:
        """Note the signal from now on. Raises ValueError outside the main thread, where Python sets no handlers."""
        if self._handler is not None and signal.getsignal(signal.SIGTERM) is self._handler:
            return
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "SIGTERM can be watched for from the main thread only: make the CheckpointManager there, or with chkpt_on_preemption=False"
            )
        # Once: hooks of fork cannot be taken back.
        if self._handler is None:
            os.register_at_fork(before=self._block_signal, after_in_parent=self._unblock_signal, after_in_child=self._restore_in_child)
        earlier = signal.getsignal(signal.SIGTERM)

        # Another one each time: a handler that somebody has put before the last one calls that, which must not call it again.
        def note(number: int, frame: FrameType | None) -> None:
            self.received = True
            if callable(earlier):
                earlier(number, frame)

        self._earlier, self._handler = earlier, note
        signal.signal(signal.SIGTERM, note)

    def would_end(self) -> bool:
        """Whether the signal would end the process if nobody watched for it."""
        return self._earlier is signal.SIG_DFL

    def _block_signal(self) -> None:
        """Block signals to a child while it is being made, until it has its handler."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock_signal(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _restore_in_child(self) -> None:
        """A child, such as a loader's worker, saves nothing, and ends as it would without us."""
        if signal.getsignal(signal.SIGTERM) is self._handler and self._earlier is not None:
            signal.signal(signal.SIGTERM, self._earlier)
        self._unblock_signal()


_watch = _Watch()
watch = _watch.start
would_end = _watch.would_end


def received() -> bool:
    """Whether SIGTERM has come since `watch` was called."""
    return _watch.received
