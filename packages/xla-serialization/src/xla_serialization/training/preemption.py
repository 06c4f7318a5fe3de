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
        self._on = False
        self._mask: set[Any] = set()

    def start(self) -> None:
        """Note the signal from now on. Raises ValueError outside the main thread, where Python sets no handlers."""
        # `==`: each look at `self._note` makes another bound method.
        if self._on and signal.getsignal(signal.SIGTERM) == self._note:
            return
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "SIGTERM can be watched for from the main thread only: make the CheckpointManager there, or with chkpt_on_preemption=False"
            )
        self._earlier = signal.signal(signal.SIGTERM, self._note)
        # Once: hooks of fork cannot be taken back.
        if not self._on:
            os.register_at_fork(before=self._block_signal, after_in_parent=self._unblock_signal, after_in_child=self._restore_in_child)
        self._on = True

    def would_end(self) -> bool:
        """Whether the signal would end the process if nobody watched for it."""
        return self._earlier is signal.SIG_DFL

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        if callable(self._earlier) and self._earlier != self._note:
            self._earlier(number, frame)

    def _block_signal(self) -> None:
        """Block signals to a child while it is being made, until it has its handler."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock_signal(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _restore_in_child(self) -> None:
        """A child, such as a loader's worker, saves nothing, and ends as it would without us."""
        if signal.getsignal(signal.SIGTERM) == self._note and self._earlier is not None:
            signal.signal(signal.SIGTERM, self._earlier)
        self._unblock_signal()


_watch = _Watch()
watch = _watch.start
would_end = _watch.would_end


def received() -> bool:
    """Whether SIGTERM has come since `watch` was called."""
    return _watch.received
