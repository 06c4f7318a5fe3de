"""The signal with which libtpu's own timer interrupts its process."""

from __future__ import annotations

import signal
import threading


def tell_python_that_it_is_ignored() -> None:
    """After libtpu is loaded: it ignores SIGPROF, and its timer ends a process that does not.

    Python looks at handlers when it starts, and libraries that keep and restore them, as Lightning does around a training, would set the
    default again. Does nothing where a program has a handler of its own, and in other threads than the first, which may not set one.
    """
    first = threading.current_thread() is threading.main_thread()
    if first and signal.getsignal(signal.SIGPROF) == signal.SIG_DFL:
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
