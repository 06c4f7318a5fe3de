"""Find on whose behalf work is done: the line of code of the user, not of Python, torch, jax or these packages, and its region."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

import jax
import torch

import xla_core
from xla_core.base import metrics

_inside = tuple(f"{Path(module.__file__ or '').parent}/" for module in (torch, jax, xla_core))
_NAMESPACE = "/torch_xla/"
_STANDARD_LIBRARY = f"{Path(threading.__file__).parent}/"
_INSTALLED = ("/site-packages/", "/dist-packages/")  # where these are below the standard library
_NO_NAME = re.compile(r"\W")


def exclude_frames(folder: Path) -> None:
    """Let the code below `folder` not count as the user's."""
    global _inside
    _inside += (f"{folder}/",)
    is_users.cache_clear()


def user_line() -> str | None:
    """`file:line` of the innermost frame of the user's code; None if there is none (in a thread of ours)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def user_lines(most: int) -> list[str]:
    """`file:line` of the innermost frames of the user's code, `most` of them."""
    lines: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < most:
        if is_users(frame.f_code.co_filename):
            lines.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return lines


def asking_line() -> str | None:
    """`user_line()` for events; None without subscribers. Ask before the program runs: walking the stack costs more afterwards."""
    return user_line() if metrics.listened() else None


_OPTIMIZERS = f"{_inside[0]}optim/optimizer.py"


def in_optimizer() -> bool:
    """Whether this thread is in the step of an optimizer based on torch's, and not in the closure that the step calls."""
    if torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _OPTIMIZERS:
        frame = frame.f_back
    return frame is not None


def asking_name() -> str:
    """A name for the requested program: of the innermost named region, else of the user's function or file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    function = "run" if frame is None else frame.f_code.co_name
    if frame is not None and function == "<module>":
        function = Path(frame.f_code.co_filename).stem
    return _NO_NAME.sub("_", region_name() or function).strip("_") or "run"


def user_frames() -> tuple[str, ...]:
    """`function (file:line)` of all frames of the user's code in this thread, the innermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            frames.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return tuple(frames)


@cache
def is_users(path: str) -> bool:
    """Whether a source file is the user's: not of Python, torch, jax or these packages."""
    if path.startswith((*_inside, "<frozen")) or _NAMESPACE in path:
        return False
    return not path.startswith(_STANDARD_LIBRARY) or any(folder in path for folder in _INSTALLED)


class _Regions(threading.local):
    """Names of the `torch_xla.compile` regions that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.default: str | None = None  # outside of regions


_regions = _Regions()


def enter_region(name: str | None) -> None:
    """Give programs that this thread records from now on a name."""
    _regions.names.append(name)


def name_graphs(name: str | None) -> None:
    """Give programs that this thread records outside of named regions a name."""
    _regions.default = name


def leave_region() -> None:
    """Undo the last `enter_region`."""
    _regions.names.pop()


class _Scopes(threading.local):
    """The names of the profiler's scopes that this thread is in, outermost first."""

    def __init__(self) -> None:
        self.names: list[str] = []


_scopes = _Scopes()


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Name the operations that this thread records in a block. No step may end there while operations keep their lines (`XLA_IR_DEBUG`)."""
    _scopes.names.append(name)
    try:
        yield
    finally:
        _scopes.names.pop()


def open_scopes() -> tuple[str, ...]:
    """The scopes that this thread is in, outermost first."""
    return tuple(_scopes.names)


def in_region() -> bool:
    """Whether this thread is in a `torch_xla.compile` region."""
    return bool(_regions.names)


def region_name() -> str | None:
    """The name of the innermost region that has one."""
    names = _regions.names
    return next((name for name in reversed(names) if name is not None), _regions.default) if names else _regions.default


def line_of_error(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of the user's code that an error came through; None if there is none."""
    line, traceback = None, error.__traceback__
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            line = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line
