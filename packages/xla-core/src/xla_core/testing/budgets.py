"""Budgets of public functions, checked by module."""

from __future__ import annotations

import inspect
from types import ModuleType

from xla_core.base.budgets import Budget


def functions_without_budget(module: ModuleType, package: str) -> list[str]:
    """The functions that a module shows to users, that `package` (an import name) defines, and that declare no budget."""
    shown = {name: thing for name in module.__all__ if inspect.isfunction(thing := getattr(module, name))}
    own = {name: function for name, function in shown.items() if function.__module__.partition(".")[0] == package}
    return [
        name for name, function in own.items() if not name.startswith("_") and not isinstance(getattr(function, "__budget__", None), Budget)
    ]
