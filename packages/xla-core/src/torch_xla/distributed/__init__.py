"""Replicas and shardings. This package is shared: other wheels bring the modules below it."""

from __future__ import annotations

import pkgutil
from typing import Any

from xla_core.api.plugins import MODULES as _MODULES
from xla_core.api.user_modules import submodule as _submodule

__path__ = pkgutil.extend_path(__path__, __name__)
__all__: list[str] = []

_SUBMODULES = tuple(name.rpartition(".")[2] for name in _MODULES if name.startswith(f"{__name__}."))


def __getattr__(name: str) -> Any:
    return _submodule(__name__, name, _SUBMODULES)
