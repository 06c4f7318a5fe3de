"""Let signal handlers wait while torch asks for the kind of a device that was added from Python.

Each time autograd notes an operation, torch asks the device's guard, in C++ that must not raise: an exception there ends the process. On
the way to the guard it converts a text, and Python runs handlers of signals then; that of Ctrl-C raises. So a handler that would run there
runs at the next instruction of Python instead.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # built in; typeshed leaves it out
import functools
import signal
import threading
from _thread import interrupt_main
from collections.abc import Callable
from types import FrameType
from typing import Any

# The functions of module `signal` without its conversion of numbers and handlers to enums, which takes microseconds at each call.
get_signal_handler: Callable[[int], Any] = _signal.getsignal
set_signal_handler: Callable[[int, Any], Any] = _signal.signal
# Numbers beyond the names in module `signal` are taken, too; typeshed says otherwise.
_come_again: Callable[[int], None] = interrupt_main  # type: ignore[assignment]
asking = [False]
"""Whether a thread is in the C++ that must not raise; it holds the interpreter's lock meanwhile. An item is set sooner than a global."""


def _call_unless_asking(handler: Callable[[int, FrameType | None], Any], number: int, frame: FrameType | None) -> Any:
    if not asking[0]:
        return handler(number, frame)
    # The signal comes again. Python looks for signals after a call of this function, which would be here, but not after it extends a list.
    return [*map(_come_again, (number,))]


def _waiting(handler: Any) -> Any:
    """What the process calls for a handler. None, and the numbers of the default and of ignoring, are none."""
    return functools.partial(_call_unless_asking, handler) if callable(handler) else handler


def _own(handler: Any) -> Any:
    """The handler that the program has set."""
    waits = isinstance(handler, functools.partial) and handler.func is _call_unless_asking
    return handler.args[0] if waits else handler


def let_handlers_wait() -> None:
    """Once: for the handlers that there are, and those that are set later by the standard library."""

    @functools.wraps(set_signal_handler)
    def set_waiting(signalnum: int, handler: Any, /) -> Any:
        return _own(set_signal_handler(signalnum, _waiting(handler)))

    @functools.wraps(get_signal_handler)
    def get_own(signalnum: int, /) -> Any:
        return _own(get_signal_handler(signalnum))

    if threading.current_thread() is threading.main_thread():  # the others may not set a handler
        for number in map(int, signal.valid_signals()):
            handler = get_signal_handler(number)
            if callable(handler):
                set_signal_handler(number, _waiting(handler))
    _signal.signal, _signal.getsignal = set_waiting, get_own
