"""Budgets of public functions: how many programs a call may compile and how many values it may read, declared beside the function.

A function that asks who it is, or records, must do neither: each read waits for the device. Tests hold every call to its budget; programs
of users pay nothing for it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from xla_core.base import config
from xla_core.base.errors import InternalError

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Budget:
    """What one call may cost, in its thread. None: as much as its arguments, or what is pending, make necessary."""

    compiles: int | None = 0
    reads: int | None = 0


class _Spent(threading.local):
    """What this thread has compiled and read so far."""

    compiles = 0
    reads = 0


spent = _Spent()


def budget(compiles: int | None = 0, reads: int | None = 0) -> Callable[[_F], _F]:
    """Decorator: declare what a call may cost. With `XLA_ENFORCE_BUDGETS` set at import, a call that costs more raises InternalError."""

    def declare(function: _F) -> _F:
        allowed = Budget(compiles, reads)
        held = _held_to(allowed, function) if config.ENFORCE_BUDGETS.get() else function
        held.__budget__ = allowed  # type: ignore[attr-defined]
        return held

    return declare


def _held_to(allowed: Budget, function: _F) -> _F:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = spent.compiles, spent.reads
        result = function(*args, **kwargs)
        compiles, reads = spent.compiles - before[0], spent.reads - before[1]
        for what, count, most in (("compiled", compiles, allowed.compiles), ("read", reads, allowed.reads)):
            if most is not None and count > most:
                raise InternalError(
                    f"{function.__module__}.{function.__qualname__} {what} {count} {'programs' if what == 'compiled' else 'values'} in one "
                    f"call, its budget is {most}: mend it, or declare what it costs with @budget"
                )
        return result

    return call  # type: ignore[return-value]
