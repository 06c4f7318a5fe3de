"""The plugin of this package; the core asks for it once, when a device is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xla_debug import analysis, library, metrics_saver, settings


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function. Starts what the environment asks for."""
    metrics_saver.install()
    analysis.install()
    folder = settings.ACCOUNT_DIR.get()
    if folder is not None:
        from xla_debug.account.running import keep

        keep(Path(folder))
    profiler: Any = library  # a module, not a function
    return {"torch_xla._XLAC.profiler": profiler}
