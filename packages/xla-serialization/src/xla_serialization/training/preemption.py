"""Note SIGTERM, which announces that this process is to end, so that the manager acts on it between two steps."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class _SigtermWatch:
    """Whether SIGTERM has come, and the handler that it had before. One object for all managers of a process."""

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
        # Only once: hooks of fork cannot be removed.
        if self._handler is None:
            os.register_at_fork(before=self._block_signal, after_in_parent=self._unblock_signal, after_in_child=self._restore_in_child)
        earlier = signal.getsignal(signal.SIGTERM)

        # A new function each time: a handler installed over the last one may call it, and it must not call that handler in turn.
        def note(signum: int, frame: FrameType | None) -> None:
            self.received = True
            if callable(earlier):
                earlier(signum, frame)

        self._earlier, self._handler = earlier, note
        signal.signal(signal.SIGTERM, note)

    def would_end(self) -> bool:
        """Whether the signal would end the process if nobody watched for it."""
        return self._earlier is signal.SIG_DFL

    def _block_signal(self) -> None:
        """Block SIGTERM while a child is forked, until the child has its own handler."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _unblock_signal(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _restore_in_child(self) -> None:
        """Give a forked child, such as a loader's worker, the earlier handler: it saves nothing."""
        if signal.getsignal(signal.SIGTERM) is self._handler and self._earlier is not None:
            signal.signal(signal.SIGTERM, self._earlier)
        self._unblock_signal()


_watch = _SigtermWatch()
watch = _watch.start
would_end = _watch.would_end


def received() -> bool:
    """Whether SIGTERM has come since `watch` was called."""
    return _watch.received
