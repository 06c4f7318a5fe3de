"""The model-level API. This package is shared: other wheels add modules below it."""

from __future__ import annotations

import pkgutil
from typing import Any

from xla_core.api.user_modules import submodule as _submodule

__path__ = pkgutil.extend_path(__path__, __name__)
__all__: list[str] = []

_SUBMODULES = ("dynamo_bridge", "functions", "xla_builder", "xla_env_vars", "xla_model", "xla_op_registry")


def __getattr__(name: str) -> Any:
    return _submodule(__name__, name, _SUBMODULES)
