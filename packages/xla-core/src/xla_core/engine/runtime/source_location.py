"""On whose behalf work is done: the user's own line of code, outside torch, jax and these packages, and the region it is in."""

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
_NO_NAME = re.compile(r"\W")


def exclude_frames(folder: Path) -> None:
    """Count the code below `folder` as none of the user's."""
    global _inside
    _inside += (f"{folder}/",)
    is_users.cache_clear()


def user_line() -> str | None:
    """`file:line` of the innermost frame of the user's code; None if there is none (a thread of ours)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def user_lines(most: int) -> list[str]:
    """`file:line` of the innermost frames of the user's code, `most` of them."""
    found: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < most:
        if is_users(frame.f_code.co_filename):
            found.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        frame = frame.f_back
    return found


def asking_line() -> str | None:
    """`user_line()` for events, None if nobody wants any: walking the stack costs more after a program has run."""
    return user_line() if metrics.listened() else None


_OPTIMIZERS = f"{_inside[0]}optim/optimizer.py"


def in_optimizer() -> bool:
    """Whether this thread is in the step of an optimizer, torch's or one made like them, and not in the closure that it calls."""
    if torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _OPTIMIZERS:
        frame = frame.f_back
    return frame is not None


def asking_name() -> str:
    """Name the program that is asked for: after the innermost region that has a name, else after the user's function or file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    function = "run" if frame is None else frame.f_code.co_name
    if frame is not None and function == "<module>":
        function = Path(frame.f_code.co_filename).stem
    return _NO_NAME.sub("_", region_name() or function).strip("_") or "run"


def user_frames() -> tuple[str, ...]:
    """`function (file:line)` of all frames of the user's code in this thread, the innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            found.append(f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return tuple(found)


@cache
def is_users(path: str) -> bool:
    """Whether a source file is the user's: not of torch, jax or these packages."""
    return not path.startswith(_inside) and not path.startswith("<frozen") and _NAMESPACE not in path and "/contextlib.py" not in path


class _Regions(threading.local):
    """Names of the `torch_xla.compile` regions that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.names: list[str | None] = []
        self.default: str | None = None  # outside of them


_regions = _Regions()


def enter_region(name: str | None) -> None:
    """Name what this thread records from now on."""
    _regions.names.append(name)


def name_graphs(name: str | None) -> None:
    """Name what this thread records outside of named regions."""
    _regions.default = name


def leave_region() -> None:
    """Undo the last `enter_region`."""
    _regions.names.pop()


class _Scopes(threading.local):
    """The names of the profiler's scopes that this thread is in."""

    def __init__(self) -> None:
        self.names: list[str] = []


_scopes = _Scopes()


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Name what this thread does in a block: no step ends there while operations keep their lines (`XLA_IR_DEBUG`)."""
    _scopes.names.append(name)
    try:
        yield
    finally:
        _scopes.names.pop()


def open_scopes() -> tuple[str, ...]:
    """The scopes that this thread is in, outermost first."""
    return tuple(_scopes.names)


def region_name() -> str | None:
    """The name of the innermost region that has one."""
    names = _regions.names
    return next((name for name in reversed(names) if name is not None), _regions.default) if names else _regions.default


def line_of_error(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of the user's code that an error came through; None if there is none."""
    found, traceback = None, error.__traceback__
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            found = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
