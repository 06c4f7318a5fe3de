"""What programs of this process are compiled for: for functions that are called without the context of an operation."""

from __future__ import annotations

from xla_core.engine.compile.compiler import context_of
from xla_core.engine.runtime.client import client, device_kind
from xla_core.ops.table import Context

_PLATFORMS = {"TPU": "tpu", "CUDA": "gpu", "GPU": "gpu", "ROCM": "gpu"}


def platform() -> str:
    """`tpu`, `gpu` or `cpu`. Starts no client."""
    return _PLATFORMS.get(device_kind() or "", "cpu")


def context(over_mesh: bool) -> Context:
    """The context of a program of this process. over_mesh: with the mesh of its devices, for which the client is started."""
    return context_of(client().default_shardings[0]) if over_mesh else Context((), platform=platform())
