"""Import every family of the op table, so that all rows are registered, but for files named `*_kernel.py`.

Those have operators that users call by name, with kernels of JAX, and are imported with the functions that call them: most programs need
none, and they take a while.
"""

from __future__ import annotations

import importlib
import pkgutil

import xla_core.ops


def load() -> None:
    """Register all rows; raises RegistrationError for a duplicate or a name that torch does not know."""
    for module in pkgutil.walk_packages(xla_core.ops.__path__, "xla_core.ops."):
        if not module.name.endswith("_kernel"):
            importlib.import_module(module.name)
