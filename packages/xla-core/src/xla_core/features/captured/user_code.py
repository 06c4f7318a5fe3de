"""Which code is the user's: modules, classes, and lines that a message names."""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Iterable
from typing import Any

from xla_core.engine.runtime.source_location import is_users

_LIBRARIES = frozenset({"torch", "torch_xla", "xla_core", "jax", "jaxlib", "numpy", *sys.stdlib_module_names})
_NAMESPACES = frozenset({"argparse", "optparse", "types"})  # objects of their classes are the user's data
_OF_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made while Python runs
_INSTALLED = ("/site-packages/", "/dist-packages/")


@functools.lru_cache(maxsize=4096)
def is_of_user(module: str) -> bool:
    """Whether objects of this module may be the user's."""
    if module.partition(".")[0] in _LIBRARIES:
        return module in _NAMESPACES
    return is_users(_file_of(module))


def is_class_of_user(cls: type) -> bool:
    """Whether objects of this class may be the user's."""
    module: Any = cls.__module__
    # A class that a text defines has no module of its own.
    return isinstance(module, str) and (is_of_user(module) or (module == "builtins" and bool(cls.__flags__ & _OF_PYTHON)))


def classes_of_user() -> Iterable[type]:
    """The classes of the user's files, whose objects may be reached in ways that are not followed."""
    waiting, seen = [object], set()
    while waiting:
        for cls in type.__subclasses__(waiting.pop()):
            if cls not in seen:
                seen.add(cls)
                waiting.append(cls)
                if is_class_of_user(cls) and not issubclass(cls, (enum.Enum, BaseException)) and not is_installed(_file_of(cls.__module__)):
                    yield cls


def _file_of(module: str) -> str:
    found = sys.modules.get(module)
    return "" if found is None else vars(found).get("__file__") or ""


def is_installed(path: str) -> bool:
    """Whether a file belongs to an installed package."""
    return any(part in path for part in _INSTALLED)


def line_of(frame: types.FrameType | None, of_user: bool = False) -> str | None:
    """The line of the user, or of a library other than these packages, that Python's own functions work for. of_user: not of libraries."""
    while frame is not None and (frame.f_globals.get("__name__") or "").partition(".")[0] in sys.stdlib_module_names:
        frame = frame.f_back
    if frame is None or (of_user and not is_of_user(frame.f_globals.get("__name__") or "")):
        return None
    of_ours = (frame.f_globals.get("__name__") or "").startswith("xla_core.")
    return None if of_ours else f"{frame.f_code.co_filename}:{frame.f_lineno}"
