"""Stop daemon threads that still compute before the process ends, so that it ends with its own exit status.

Python before 3.14 ends a thread that wants the GIL during shutdown with `pthread_exit`, which must not unwind C++ frames: those of torch
and jaxlib abort the process. Such a thread is in an operation of ours, or on its way to one.
"""

from __future__ import annotations

import atexit
import queue
import sys
import threading
import time
from types import FrameType

from xla_core.base.private_torch import keep_kernels_at_exit
from xla_core.engine.runtime.client import keep_to_this_thread, started

_PATIENCE_S = 10.0
"""A thread that does not return from native code within this time, such as one that waits for another process, is left there."""
_TURNS = 4
"""How often each running thread must have had a chance to take the GIL before none counts as on its way to a device."""


def register() -> None:
    """Stop threads when the process ends: after all hooks that are registered later, before jax destroys its clients."""
    atexit.register(_stop_threads)


def _stop_threads() -> None:
    """Wait until no other thread uses devices."""
    if not started():
        return
    keep_to_this_thread()
    keep_kernels_at_exit()  # a thread that comes later, out of native code, ends at the device's kernel, which must be there
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
