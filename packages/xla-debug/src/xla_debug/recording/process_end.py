"""Call functions when this process ends, also in a child of multiprocessing."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
from collections.abc import Callable


def register(finish: Callable[[], None]) -> Callable[[], None]:
    """Call `finish` at the end of this process, but not of processes forked from it; returns a function that cancels this."""
    if multiprocessing.parent_process() is None:
        own_pid = os.getpid()

        def finish_own() -> None:
            if os.getpid() == own_pid:
                finish()

        atexit.register(finish_own)
        return lambda: atexit.unregister(finish_own)
    # A child of multiprocessing may end without running atexit.
    finalizer = multiprocessing.util.Finalize(None, finish, exitpriority=100)
    return lambda: finalizer.cancel()
