"""The package itself, since it is shared: installed wheels have its modules, else those beside this file, which name the wheel."""

from __future__ import annotations

import pkgutil
from typing import Any

from xla_core.api.user_modules import submodule

__path__ = pkgutil.extend_path([], __name__)  # this folder comes last, as in the parent's path

_SUBMODULES = (
    "data_parallel",
    "fsdp",
    "parallel_loader",
    "spmd",
    "xla_backend",
    "xla_dist",
    "xla_multiprocessing",
    "zero_redundancy_optimizer",
)


def __getattr__(name: str) -> Any:
    return submodule(__name__, name, _SUBMODULES)
