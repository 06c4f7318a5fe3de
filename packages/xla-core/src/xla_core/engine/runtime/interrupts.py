"""Delay Ctrl-C to the end of a block that must not be left half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; typeshed leaves it out
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_SIGINT = int(signal.SIGINT)
# The functions of module `signal` without its conversion of numbers and handlers to enums, which takes microseconds at each call.
get_signal_handler: Callable[[int], Any] = _signal.getsignal
set_signal_handler: Callable[[int, Any], Any] = _signal.signal


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
