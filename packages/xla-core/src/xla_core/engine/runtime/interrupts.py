"""Delay Ctrl-C to the end of a block that must not be left half done."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from xla_core.base.signal_handlers import get_signal_handler, set_signal_handler

_SIGINT = int(signal.SIGINT)


class uninterrupted:  # read as a word, as contextlib.suppress
    """A block that SIGINT does not interrupt: the signal's handler runs right after the block. Only the main thread gets signals."""

    __slots__ = ("_came", "_handler")

    def __enter__(self) -> None:
        self._came: tuple[int, FrameType | None] | None = None
        self._handler: Any = None
        if threading.get_ident() == threading.main_thread().ident:
            handler = get_signal_handler(_SIGINT)
            if callable(handler):  # SIG_DFL and SIG_IGN are not, and interrupt no Python code
                self._handler = handler
                set_signal_handler(_SIGINT, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._came = signum, frame

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            # Restored first: the handler raises.
            set_signal_handler(_SIGINT, self._handler)
            if self._came is not None:
                self._handler(*self._came)
