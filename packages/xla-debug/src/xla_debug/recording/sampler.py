"""Sample the stack of the thread that runs the steps, fifty times a second at first and later less often.

Recording an operation runs no extra code, so the cost does not depend on how much is recorded.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import jax
import torch

from xla_debug.core import abi
from xla_debug.run_report.schema import Phase

INTERVAL_S = 0.02
"""The first interval. A sample takes the interpreter lock from the thread that steps, which on busy cores regains it a millisecond on."""
_LONGEST = 16
"""First intervals between two samples of a long run, at most: its shares need no more samples."""
_SAMPLES = 128
"""Samples after which the interval doubles, and again after twice as many."""
_MOST_FRAMES = 80
_MOST_SAMPLES = 100_000
"""Samples kept while nothing reads them, as in a program without steps."""

_CORE = f"{Path(abi.__file__).parents[1]}/"
_TORCH, _JAX = (f"{Path(module.__file__ or '').parent}/" for module in (torch, jax))
# Files whose work events time exactly, so that samples in them do not count.
_TIMED = tuple(
    _CORE + part
    for part in (
        "engine/runtime/sync.py",
        "engine/runtime/executor.py",
        "engine/runtime/timing.py",
        "engine/runtime/transfer.py",
        "engine/compile/",
        "engine/tensor/fallback.py",
    )
)
_LOADERS = (f"{_TORCH}utils/data/", "/xla_distributed/loader.py")
_RECORDING = (_CORE, _TORCH, _JAX)
_INSTALLED = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_OURS = ("/torch_xla/", "/xla_distributed/", "/xla_spmd/", "/xla_serialization/", "/xla_debug/")


class _Code(enum.Enum):
    """What the code of a file belongs to."""

    TIMED = enum.auto()
    LOADER = enum.auto()
    RECORDING = enum.auto()
    USERS = enum.auto()
    OTHER = enum.auto()


@cache
def _code(path: str) -> _Code:
    if path.startswith(_TIMED):
        return _Code.TIMED
    if path.startswith(_LOADERS[0]) or path.endswith(_LOADERS[1]):
        return _Code.LOADER
    if path.startswith(_RECORDING):
        return _Code.RECORDING
    return _Code.OTHER if path.startswith(_INSTALLED) or any(part in path for part in _OURS) else _Code.USERS


def classify(frame: FrameType | None) -> tuple[Phase, str] | None:
    """Classify a thread by its innermost frame, and give the user's line; None if events time that code, or no frame is the user's."""
    tracing = loading = False
    user: FrameType | None = None
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        code = _code(frame.f_code.co_filename)
        if code is _Code.TIMED:
            return None
        if code is _Code.LOADER:
            loading = True
        elif code is _Code.RECORDING:
            # Only inside the user's innermost frame: outside of it, torch called the user's module.
            tracing = tracing or user is None
        elif code is _Code.USERS and user is None:
            user = frame
            # In a script without a DataLoader, a generator makes the batches.
            loading = loading or (not tracing and bool(frame.f_code.co_flags & inspect.CO_GENERATOR))
        frame = frame.f_back
    if user is None:
        return None
    line = f"{user.f_code.co_filename}:{user.f_lineno}"
    return Phase.LOADER if loading else Phase.TRACING if tracing else Phase.PYTHON, line


def classify_with_loaders(frames: Mapping[int, FrameType], thread: int) -> tuple[Phase, str] | None:
    """Classify a thread; while it waits for a loader, by the user's line in another thread that makes batches, if there is one."""
    classified = classify(frames.get(thread))
    if classified is not None and classified[0] is Phase.LOADER and _in_loader(frames[thread]):
        loaders = (classify(frame) for other, frame in frames.items() if other != thread and not _in_loader(frame))
        return next((other for other in loaders if other is not None and other[0] is Phase.LOADER), classified)
    return classified


def _in_loader(frame: FrameType | None) -> bool:
    """Whether a thread is in a loader's own code, not in the user's code that the loader calls."""
    while frame is not None:
        code = _code(frame.f_code.co_filename)
        if code in (_Code.LOADER, _Code.USERS):
            return code is _Code.LOADER
        frame = frame.f_back
    return False


class Sample(NamedTuple):
    """A sample of a thread outside timed events. weight: the number of first intervals that it stands for."""

    time_s: float
    phase: Phase
    line: str
    weight: int = 1


def weight_of(index: int) -> int:
    """The number of first intervals that sample `index` stands for, a power of two."""
    weight: int = min(1 << (index // _SAMPLES).bit_length(), _LONGEST)
    return weight


class Sampler:
    """Samples one thread. samples: oldest first; the reader removes them."""

    def __init__(self) -> None:
        self.thread = threading.main_thread().ident
        self.samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self._end = threading.Event()
        self._runner = threading.Thread(target=self._run, name="xla-debug-sampler", daemon=True)

    def start(self) -> None:
        """Start sampling."""
        self._runner.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._end.set()
        self._runner.join()

    def _run(self) -> None:
        for index in itertools.count():
            weight = weight_of(index)
            if self._end.wait(weight * INTERVAL_S):
                return
            classified = classify_with_loaders(sys._current_frames(), self.thread or 0)
            if classified is not None:
                self.samples.append(Sample(time.time(), *classified, weight))
