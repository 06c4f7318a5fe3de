"""The collectives, one a file: the function for users, the operation with its shapes and its lowering, and the same among threads.

`OFFERED` of a file says under which of the user's names its functions are found. The rows of these names are in the core's table
(`api/single_replica.py`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any


def offered() -> dict[str, Callable[..., Any]]:
    """User's name in full → function, of all files here."""
    functions: dict[str, Callable[..., Any]] = {}
    for module in pkgutil.iter_modules(__path__):
        functions |= importlib.import_module(f"{__name__}.{module.name}").OFFERED
    return functions
