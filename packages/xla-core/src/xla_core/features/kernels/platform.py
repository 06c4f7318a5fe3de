"""The platform that programs are compiled for, where no lowering's context tells it."""

from __future__ import annotations

from xla_core.engine.runtime.client import client, device_kind
from xla_core.engine.runtime.placing import FAMILIES
from xla_core.ops.table import Context


def platform() -> str:
    """`tpu`, `gpu` or `cpu`. Starts no client."""
    return FAMILIES.get(device_kind() or "", "cpu")


def context(over_mesh: bool) -> Context:
    """The context of a program of this process. over_mesh: with the mesh of its devices, for which the client is started."""
    return client().placements[0].context if over_mesh else Context((), platform=platform())
