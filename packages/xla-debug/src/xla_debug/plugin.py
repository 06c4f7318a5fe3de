"""What this package does by being installed; the core asks for it once, when a device is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function."""
    from xla_debug import library

    profiler: Any = library  # a module, not a function
    return {"torch_xla._XLAC.profiler": profiler}
