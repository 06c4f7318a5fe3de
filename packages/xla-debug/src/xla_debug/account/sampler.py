"""Where the host's time goes between syncs: the stack of the thread that steps, looked at fifty times a second.

Nothing is added to what runs for each recorded operation, so the cost does not depend on how much is recorded.
"""

from __future__ import annotations

import inspect
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import jax
import torch

from xla_debug.account.schema import Phase
from xla_debug.core import abi

INTERVAL_S = 0.02  # each look takes the interpreter lock from the thread that steps
_MOST_FRAMES = 80

_CORE, _TORCH, _JAX = (f"{Path(module.__file__ or '').parent}/" for module in (abi, torch, jax))
# Below these, time is told exactly by events.
_TOLD = tuple(
    _CORE + part for part in ("runtime/sync.py", "runtime/executor.py", "runtime/transfer.py", "compile/", "frontend/fallback.py")
)
_LOADERS = (f"{_TORCH}utils/data/", "/xla_distributed/loader.py")
_RECORDING = (_CORE, _TORCH, _JAX)
_INSTALLED = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_OURS = ("/torch_xla/", "/xla_distributed/", "/xla_spmd/", "/xla_serialization/", "/xla_debug/")


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def classify(frame: FrameType | None) -> tuple[Phase, str] | None:
    """What a thread with this innermost frame is doing, and the user's line; None for what events tell, or nothing of the user's."""
    tracing = loading = False
    user: FrameType | None = None
    for one in _frames(frame):
        path = one.f_code.co_filename
        if path.startswith(_TOLD):
            return None
        if path.startswith(_LOADERS[0]) or path.endswith(_LOADERS[1]):
            loading = True
        elif path.startswith(_RECORDING):
            tracing = tracing or user is None
        elif user is None and not path.startswith(_INSTALLED) and not any(part in path for part in _OURS):
            user = one
            # A generator that somebody iterates over makes batches, in a script without a DataLoader.
            loading = loading or (not tracing and bool(one.f_code.co_flags & inspect.CO_GENERATOR))
    if user is None:
        return None
    line = f"{user.f_code.co_filename}:{user.f_lineno}"
    return Phase.LOADER if loading else Phase.TRACING if tracing else Phase.PYTHON, line


class Sampler:
    """Counts of (phase, line) of one thread. `take` gives those since the last call, without stopping."""

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident
        self._lock = threading.Lock()
        self._counts: Counter[tuple[Phase, str]] = Counter()
        self._end = threading.Event()
        self._runner = threading.Thread(target=self._run, name="xla-debug-sampler", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._runner.start()

    def stop(self) -> None:
        """Look no longer."""
        self._end.set()
        self._runner.join()

    def take(self) -> Counter[tuple[Phase, str]]:
        """What was seen since the last call."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken

    def _run(self) -> None:
        while not self._end.wait(INTERVAL_S):
            found = classify(sys._current_frames().get(self.thread or 0))
            if found is not None:
                with self._lock:
                    self._counts[found] += 1
