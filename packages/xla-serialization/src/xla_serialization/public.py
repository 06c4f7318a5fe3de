"""The public names of this package, which `xla_serialization` shows."""

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
    "load",
    "load_into",
    "progress_bar",
    "save",
]
