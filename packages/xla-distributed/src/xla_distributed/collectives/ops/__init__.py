"""The collectives, one a file: the operation with its shapes and its lowering, the same among threads, and the function that records it.

A collective that the core does not know is a function of its file's `OFFERED`, by its name in `torch_xla.core.xla_model`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any


def offered() -> dict[str, Callable[..., Any]]:
    """Name in `xla_model` → function, of all files here that offer one."""
    functions: dict[str, Callable[..., Any]] = {}
    for module in pkgutil.iter_modules(__path__):
        functions |= getattr(importlib.import_module(f"{__name__}.{module.name}"), "OFFERED", {})
    return functions
