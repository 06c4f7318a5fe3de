"""The guards that programs call before they use JAX beside torch. Here JAX is always there, and has the devices of `xla`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import ParamSpec, TypeVar

import jax

from xla_core.engine.runtime import client

P = ParamSpec("P")
R = TypeVar("R")


def jax_import_guard() -> None:
    """Start the devices of this process, so that JAX code of the user's finds them with the settings made here."""
    client.client()


@contextmanager
def jax_env_context() -> Iterator[None]:
    """A block in which JAX may be used, as anywhere else; devices are started before."""
    jax_import_guard()
    yield


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
