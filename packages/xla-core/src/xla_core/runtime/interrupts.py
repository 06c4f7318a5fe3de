"""Ctrl-C waits for the end of what must not be left half done."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class uninterrupted:  # read as a word, as contextlib.suppress
    """A block that signal SIGINT does not cut off: its handler runs right after the block. Only the main thread gets signals."""

    __slots__ = ("_came", "_handler")

    def __enter__(self) -> None:
        self._came: tuple[int, FrameType | None] | None = None
        self._handler: Any = None
        if threading.get_ident() == threading.main_thread().ident:
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                self._handler = handler
                signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number, frame

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._came is not None:
                self._handler(*self._came)
