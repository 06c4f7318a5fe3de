"""Checkpoints larger than host memory, never half-written: tensors in safetensors files, everything else in JSON (FORMAT.md)."""

from xla_serialization._version import __version__
from xla_serialization.core import abi as _abi

# isort: split
from xla_serialization.checkpoint.in_place import load_into
from xla_serialization.checkpoint.loading import Checkpoint, load
from xla_serialization.checkpoint.saving import save
from xla_serialization.errors import (
    CheckpointError,
    DamagedCheckpointError,
    FailedSaveError,
    MismatchError,
    MissingCheckpointError,
    NewerCheckpointError,
    ReplicasDifferError,
    UnsavableError,
)
from xla_serialization.format.per_process import PerProcess
from xla_serialization.progress import progress_bar
from xla_serialization.torch_formats.dcp_staging import SnapshotStager

del _abi  # imported before all that needs `torch_xla`: it checks that this core fits, and that `torch_xla` is ours

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
