"""Finds code that may take a number out of Python's sight: only where there is none are numbers followed.

A traced number (`engine/tracing/numbers.py`) sees what Python's own arithmetic, `math` and torch do with it. Code in C that takes a float
looks at its memory without asking, and what comes of that is not followed.
"""

from __future__ import annotations

import builtins
import math
import sys
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from xla_core.engine.tracing.numbers import TRACED
from xla_core.features.captured.lookups import Lookups

_SEEING = frozenset(
    "abs all any bool callable delattr dict divmod enumerate filter float format frozenset getattr hasattr hash id int isinstance "
    "issubclass "
    "iter len list map max min next object pow print property range repr reversed round set setattr slice sorted staticmethod str sum "
    "super "
    "tuple vars zip classmethod open globals locals dir".split()
)
"""Functions and classes of Python that ask a number for what they need."""
_MODULES = frozenset(
    "__future__ abc argparse bisect collections contextlib contextvars copy dataclasses enum fnmatch functools gc heapq importlib inspect "
    "io itertools logging math operator os pathlib queue random re sys tempfile threading time traceback types typing typing_extensions "
    "warnings weakref torch torch_xla xla_core jax jaxlib".split()
)
"""Libraries that do so, or that take no numbers."""


def escape(found: Lookups, variables: Mapping[str, Any]) -> str | None:
    """The first thing that a function's code names and that may take a number without asking; None if there is none.

    variables: the global variables of the code.
    """
    for name in sorted(found.imports):
        if _is_blind_module(name):
            return name
    for name in sorted(found.variables):
        value = variables.get(name, getattr(builtins, name, None))
        if value is np or value is math:
            of_module = _is_blind_of_numpy if value is np else _is_blind_of_math
            blind = next((key for key in sorted(found.attributes) if of_module(vars(value).get(key))), None)
            if blind is not None:
                return f"{value.__name__}.{blind}"
        elif name == "type":
            if not found.variables.isdisjoint(("float", "int")):
                return "type, which it may compare with int or float"
        elif name == "isinstance" and "float" in found.variables:
            return "isinstance, which it may ask for float"  # whole numbers are followed as floats
        elif name not in _SEEING and _is_blind(value):
            return name
    if "__class__" in found.attributes:
        return "__class__"
    return "% with a text" if found.formats else None


def _is_blind(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return _is_blind_module(value.__name__)
    if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        module = value.__module__ or ""
        of_python = module == "builtins" and not issubclass(value, BaseException) if isinstance(value, type) else module == "builtins"
        return of_python or _is_blind_module(module) or (module.partition(".")[0] == "numpy" and _is_blind_of_numpy(value))
    return False


def _is_blind_module(name: str) -> bool:
    """Whether a module is one of Python's libraries that may take numbers without asking."""
    root = name.partition(".")[0]
    return root in sys.stdlib_module_names and root not in _MODULES and root != "builtins"


def _is_blind_of_math(value: Any) -> bool:
    return callable(value) and value not in TRACED and value not in TRACED.values()


def _is_blind_of_numpy(value: Any) -> bool:
    return callable(value) and not isinstance(value, np.ufunc) or (isinstance(value, types.ModuleType) and value.__name__ == "numpy.random")
