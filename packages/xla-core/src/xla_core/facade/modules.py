"""The user's modules, looked up at each call: what users and their tests replace there is what our own code must call."""

from __future__ import annotations

import importlib
from typing import Any


def xr() -> Any:
    """`torch_xla.runtime`."""
    return importlib.import_module("torch_xla.runtime")


def xm() -> Any:
    """`torch_xla.core.xla_model`."""
    return importlib.import_module("torch_xla.core.xla_model")


def submodule(package: str, name: str, names: tuple[str, ...]) -> Any:
    """The `__getattr__` of a package: imports a submodule when it is first asked for, so that the package itself is quick."""
    if name not in names:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")
