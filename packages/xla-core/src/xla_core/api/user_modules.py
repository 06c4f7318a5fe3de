"""The user's modules: if a user or a test replaces a function there, our own code must call the replacement."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


@functools.cache
def runtime() -> Any:
    """The module `torch_xla.runtime`, which imports this package."""
    return importlib.import_module("torch_xla.runtime")


@functools.cache
def _model() -> Any:
    return importlib.import_module("torch_xla.core.xla_model")


def xr(function: Callable[P, R]) -> Callable[P, R]:
    """The function that `torch_xla.runtime` now has under the name of `function`: itself, unless it was replaced there."""
    replaceable: Callable[P, R] = getattr(runtime(), function.__name__)
    return replaceable


def xm(function: Callable[P, R]) -> Callable[P, R]:
    """As `xr`, in `torch_xla.core.xla_model`, where a collective may also be another package's."""
    replaceable: Callable[P, R] = getattr(_model(), function.__name__)
    return replaceable


def submodule(package: str, name: str, names: tuple[str, ...]) -> Any:
    """The `__getattr__` of a package: imports a submodule at its first use, so that importing the package is quick."""
    if name not in names:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")
