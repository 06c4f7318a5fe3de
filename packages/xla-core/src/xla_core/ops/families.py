"""Import every family of the op table, so that all rows are registered."""

from __future__ import annotations

import importlib
import pkgutil

import xla_core.ops

_NOT_FAMILIES = {"families", "table", "views"}


def load() -> None:
    """Register all rows; raises RegistrationError for a duplicate or a name that torch does not know."""
    for module in pkgutil.iter_modules(xla_core.ops.__path__):
        if module.name not in _NOT_FAMILIES:
            importlib.import_module(f"xla_core.ops.{module.name}")
