"""Meshes and partition specs of users, as the text that operations take."""

from __future__ import annotations

import sys
from typing import Any


def texts(partition_spec: Any, mesh: Any) -> tuple[str | None, str | None]:
    """Spec and mesh as operations take them; without a spec neither, without a mesh that of the process."""
    if partition_spec is None:
        return None, None
    if mesh is None and "torch_xla.distributed.spmd" in sys.modules:  # a mesh was set through it
        mesh = sys.modules["torch_xla.distributed.spmd"].get_global_mesh()
    spec = partition_spec if isinstance(partition_spec, str) else str(tuple(partition_spec))
    return spec, None if mesh is None else str(mesh)
