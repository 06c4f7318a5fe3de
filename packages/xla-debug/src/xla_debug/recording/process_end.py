"""Do something when this process ends, in a child of multiprocessing too."""

from __future__ import annotations

import atexit
import multiprocessing.util
from collections.abc import Callable


def register(finish: Callable[[], None]) -> Callable[[], None]:
    """Call `finish` at the end of the process; returns a function that calls it off."""
    if multiprocessing.parent_process() is None:
        atexit.register(finish)
        return lambda: atexit.unregister(finish)
    # Such a child may end without atexit.
    at_end = multiprocessing.util.Finalize(None, finish, exitpriority=100)
    return lambda: at_end.cancel()
