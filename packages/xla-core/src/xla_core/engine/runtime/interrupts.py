"""Ctrl-C waits for the end of what must not be left half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; typeshed leaves it out
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGINT = int(signal.SIGINT)
# As in module `signal`, which also makes enums of numbers and handlers: microseconds of each read.
get_signal_handler: Callable[[int], Any] = _signal.getsignal
set_signal_handler: Callable[[int, Any], Any] = _signal.signal


class uninterrupted:  # read as a word, as contextlib.suppress
    """A block that signal SIGINT does not cut off: its handler runs right after the block. Only the main thread gets signals."""

    __slots__ = ("_came", "_handler")

    def __enter__(self) -> None:
        self._came: tuple[int, FrameType | None] | None = None
        self._handler: Any = None
        if threading.get_ident() == threading.main_thread().ident:
            handler = get_signal_handler(_SIGINT)
            if callable(handler):  # SIG_DFL and SIG_IGN are not: nothing in Python is cut off
                self._handler = handler
                set_signal_handler(_SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number, frame

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            # Put back first: the handler raises.
            set_signal_handler(_SIGINT, self._handler)
            if self._came is not None:
                self._handler(*self._came)
