"""What programs ask before they use JAX beside shardings. Here it is always there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def requires_jax(func: Callable[P, R]) -> Callable[P, R]:
    """The function itself: JAX is there."""
    return func


def maybe_get_jax(log: bool = True) -> ModuleType:
    """The module jax. log: has no effect, there is no absence to report."""
    return jax


def maybe_get_torchax() -> ModuleType | None:
    """The module torchax; None if it is not installed."""
    try:
        return importlib.import_module("torchax")
    except ImportError:
        return None
