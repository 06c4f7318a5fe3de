"""Do something when this process ends, in a child of multiprocessing too."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
from collections.abc import Callable


def register(finish: Callable[[], None]) -> Callable[[], None]:
    """Call `finish` at the end of the process, not of those forked from it; returns a function that calls it off."""
    if multiprocessing.parent_process() is None:
        own_pid = os.getpid()

        def finish_own() -> None:
            if os.getpid() == own_pid:
                finish()

        atexit.register(finish_own)
        return lambda: atexit.unregister(finish_own)
    # Such a child may end without atexit.
    finalizer = multiprocessing.util.Finalize(None, finish, exitpriority=100)
    return lambda: finalizer.cancel()
