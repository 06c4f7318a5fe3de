"""Import every family of the op table, so that all rows are registered."""

from __future__ import annotations

import importlib
import pkgutil

import xla_core.ops


def load() -> None:
    """Register all rows; raises RegistrationError for a duplicate or a name that torch does not know."""
    for module in pkgutil.walk_packages(xla_core.ops.__path__, "xla_core.ops."):
        importlib.import_module(module.name)
