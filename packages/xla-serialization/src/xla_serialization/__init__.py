"""Checkpoints larger than host memory, never half-written: tensors in safetensors files, everything else in JSON (FORMAT.md).

The modules behind a name are imported when it is first used: the core imports this package whenever devices start.
"""

# ruff: noqa: F405 (the names of `public`)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xla_serialization._version import __version__
from xla_serialization.core import abi as _abi

del _abi  # importing it checks that this core fits, and that `torch_xla` is ours, before anything else is imported

if TYPE_CHECKING:
    from xla_serialization.public import *  # noqa: F403

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "DamagedCheckpointError",
    "FailedSaveError",
    "MismatchError",
    "MissingCheckpointError",
    "NewerCheckpointError",
    "PerProcess",
    "ReplicasDifferError",
    "SnapshotStager",
    "UnsavableError",
    "__version__",
    "load",
    "load_into",
    "progress_bar",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xla_serialization import public

    return getattr(public, name)


def __dir__() -> list[str]:
    return __all__
