"""The user's modules: what a user or a test replaces there is what our own code must call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def xr(function: Callable[P, R]) -> Callable[P, R]:
    """The function that `torch_xla.runtime` now has under the name of `function`: itself, unless it was replaced there."""
    return _current("torch_xla.runtime", function)


def xm(function: Callable[P, R]) -> Callable[P, R]:
    """As `xr`, in `torch_xla.core.xla_model`, where a collective may also be another package's."""
    return _current("torch_xla.core.xla_model", function)


def _current(module: str, function: Callable[P, R]) -> Callable[P, R]:
    found: Callable[P, R] = getattr(importlib.import_module(module), function.__name__)
    return found


def submodule(package: str, name: str, names: tuple[str, ...]) -> Any:
    """The `__getattr__` of a package: imports a submodule when it is first asked for, so that the package itself is quick."""
    if name not in names:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")
