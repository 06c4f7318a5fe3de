"""Budgets of public functions: how many programs a call may compile and how many values it may read, declared beside the function.

A function that only records or asks about the process must do neither: each read waits for the device. Tests check every call against its
budget; in users' programs budgets cost nothing.
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
    """The compilations and reads that one call may cost, in its thread. None: as many as its arguments or pending operations need."""

    compiles: int | None = 0
    reads: int | None = 0


class _Spent(threading.local):
    """The number of compilations and reads of this thread so far."""

    compiles = 0
    reads = 0


spent = _Spent()


def budget(compiles: int | None = 0, reads: int | None = 0) -> Callable[[_F], _F]:
    """Decorator: declare the budget of a call. With `XLA_ENFORCE_BUDGETS` set at import, a call that exceeds it raises InternalError."""

    def declare(function: _F) -> _F:
        allowed = Budget(compiles, reads)
        checked = _enforced(allowed, function) if config.ENFORCE_BUDGETS.get() else function
        checked.__budget__ = allowed  # type: ignore[attr-defined]
        return checked

    return declare


def _enforced(allowed: Budget, function: _F) -> _F:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = spent.compiles, spent.reads
        result = function(*args, **kwargs)
        compiles, reads = spent.compiles - before[0], spent.reads - before[1]
        for verb, count, most in (("compiled", compiles, allowed.compiles), ("read", reads, allowed.reads)):
            if most is not None and count > most:
                raise InternalError(
                    f"{function.__module__}.{function.__qualname__} {verb} {count} {'programs' if verb == 'compiled' else 'values'} in one "
                    f"call, its budget is {most}: mend it, or declare what it costs with @budget"
                )
        return result

    return call  # type: ignore[return-value]
