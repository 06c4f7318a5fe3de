"""Old names that keep working, with one warning.

Warnings go through `logging`, so that a program which turns warnings into errors does not fail on an old name.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
P2 = ParamSpec("P2")
R2 = TypeVar("R2")

_log = logging.getLogger("torch_xla")
_lock = threading.Lock()
_warned: set[str] = set()
_SINCE = re.compile(r"[a-z]+(-[a-z]+)* \d+(\.\d+)+")
_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def warn_once(old: str, message: str) -> None:
    """Log `message`, at most once per process for the name `old`."""
    if old in _warned:  # without the lock: old names are called in every step
        return
    with _lock:
        if old in _warned:
            return
        _warned.add(old)
    _log.warning(message)


@dataclass(frozen=True, slots=True)
class Deprecation:
    """An old name, or an old form of a call, that works until a date.

    old: the full name or form; instead: what to use; since: the wheel and version that deprecated it, `xla-core 0.2.0`; removal: the month
    from which a release may lack it, `2028-12`. docs/deprecations.md is generated from these calls, so write all four as literals. Raises
    ValueError for another form of the last two.
    """

    old: str
    instead: str
    since: str
    removal: str

    def __post_init__(self) -> None:
        if _SINCE.fullmatch(self.since) is None:
            raise ValueError(f"since is {self.since!r}, must be a wheel and its version, such as 'xla-core 0.2.0'")
        if _MONTH.fullmatch(self.removal) is None:
            raise ValueError(f"removal is {self.removal!r}, must be a month, such as '2028-12'")

    @property
    def message(self) -> str:
        """The warning."""
        return f"{self.old} is deprecated, use {self.instead} instead (since {self.since}; releases from {self.removal} on may lack it)."

    def warn(self) -> None:
        """Log `message`, at most once per process."""
        if self.old not in _warned:  # old names are called in every step
            warn_once(self.old, self.message)


def _name(function: Callable[..., object]) -> str:
    return f"{getattr(function, '__module__', None) or '?'}.{getattr(function, '__qualname__', None) or repr(function)}"


def _warn_old(old: str, new: Callable[..., object], extra_msg: str | None) -> None:
    warn_once(old, f"{old} is deprecated, use {_name(new)} instead." + (f" {extra_msg}" if extra_msg else ""))


def deprecated(module: ModuleType, new: Callable[P, R], old_name: str | None = None, extra_msg: str | None = None) -> Callable[P, R]:
    """A function to bind in `module` under the old name (default: the name of `new`): warns once, then calls `new`."""
    name = str(getattr(new, "__name__", repr(new))) if old_name is None else old_name
    old = f"{module.__name__}.{name}"

    @functools.wraps(new)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        _warn_old(old, new, extra_msg)
        return new(*args, **kwargs)

    wrapper.__name__ = wrapper.__qualname__ = name
    wrapper.__module__ = module.__name__
    return wrapper


def mark_deprecated(new: Callable[..., object], extra_msg: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator: the old function keeps its own body, and warns once to call `new` instead."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        old = _name(function)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            _warn_old(old, new, extra_msg)
            return function(*args, **kwargs)

        return wrapper

    return decorate


def register_deprecated(module: ModuleType, new: Callable[P, R]) -> Callable[[Callable[P2, R2]], Callable[P, R]]:
    """Decorator: the decorated function, of `module`, warns once and calls `new`; its own body does not run."""

    def decorate(function: Callable[P2, R2]) -> Callable[P, R]:
        return deprecated(module, new, old_name=getattr(function, "__name__", None))

    return decorate
