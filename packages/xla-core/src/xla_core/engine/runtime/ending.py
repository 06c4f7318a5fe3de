"""The end of the process, with daemon threads that still compute: they stop first, so that it ends with its own exit status.

A thread that wants the GIL while the interpreter goes away is ended by Python before 3.14 with `pthread_exit`, which must not pass
through C++ frames: those of torch and jaxlib abort the process. Such a thread is under an operation of ours, or on its way there.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
from types import FrameType

from xla_core.engine.runtime.client import keep_to_this_thread, started

_PATIENCE_S = 10.0
"""Who does not come out of native code by then, as one that waits for another process, is left there."""
_TURNS = 4
"""How often each running thread could have had the GIL before none of them is believed to be on its way to a device."""


def register() -> None:
    """Stop threads when the process ends: after all that is registered later, before jax lets its clients go."""
    atexit.register(_stop_threads)


def _stop_threads() -> None:
    """Wait until no other thread uses devices."""
    if not started():
        return
    keep_to_this_thread()
    begin = quiet = now = time.monotonic()
    while now - begin < _PATIENCE_S:
        running = [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident() and not _waits(frame)]
        if any(map(_uses_devices, running)):
            quiet = now
        elif now - quiet >= len(running) * _TURNS * sys.getswitchinterval():
            return
        time.sleep(0.001)
        now = time.monotonic()


def _waits(frame: FrameType) -> bool:
    return frame.f_code.co_filename in (threading.__file__, queue.__file__)


def _uses_devices(innermost: FrameType) -> bool:
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("xla_core."):
            return True
        frame = frame.f_back
    return False
