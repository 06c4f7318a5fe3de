"""PyTorch on XLA devices. This package is shared: other wheels add modules below it."""

from __future__ import annotations

import pkgutil
import sys
from typing import Any

__path__ = pkgutil.extend_path(__path__, __name__)

from xla_core.activation import activate as _activate
from xla_core.api.backend import register as _register_backend
from xla_core.api.compile_only import compile_only
from xla_core.api.devices import device, device_count, devices
from xla_core.api.devices import xla_real_devices as real_devices
from xla_core.api.launching import launch as launch
from xla_core.api.plugins import MissingModules as _MissingModules
from xla_core.api.seal import seal
from xla_core.api.step import compile, manual_seed, step, sync
from xla_core.api.targets import target
from xla_core.api.user_modules import submodule as _submodule

__version__ = "2.10.0"  # the API level; the packages have versions of their own

__all__ = [
    "compile",
    "compile_only",
    "device",
    "device_count",
    "devices",
    "export_step",
    "launch",
    "load_step",
    "manual_seed",
    "real_devices",
    "save_as_stablehlo",
    "save_torch_model_as_stablehlo",
    "seal",
    "step",
    "sync",
    "target",
]

_SUBMODULES = (
    "_XLAC",
    "_dynamo",
    "_internal",
    "amp",
    "backends",
    "core",
    "debug",
    "distributed",
    "experimental",
    "runtime",
    "shapes",
    "stablehlo",
    "utils",
    "version",
)

sys.meta_path.append(_MissingModules())
_activate()
_register_backend()


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return _submodule(__name__, name, _SUBMODULES)
    if name in ("export_step", "load_step", "save_as_stablehlo", "save_torch_model_as_stablehlo"):
        return getattr(_submodule(__name__, "stablehlo", _SUBMODULES), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
