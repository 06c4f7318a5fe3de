"""Errors of checkpoints. Each subclasses the builtin that users of torch.save and torch.load catch. Nothing here imports torch.

CheckpointError (Exception)
├── MissingCheckpointError (FileNotFoundError)  there is none in that place
├── DamagedCheckpointError (RuntimeError)       truncated, changed, or never one of ours; names file and tensor
├── NewerCheckpointError (RuntimeError)         of a version that this package does not know
├── UnsavableError (TypeError)                  a value that a checkpoint cannot hold; names its place in the nesting
├── MismatchError (RuntimeError)                the checkpoint does not fit what it is loaded into
├── ReplicasDifferError (RuntimeError)          of replicas, which should have the same, one has other tensors; names them
└── FailedSaveError (RuntimeError)              a save in the background did not succeed; said at the next call
"""

from __future__ import annotations


class CheckpointError(Exception):
    """Something is wrong with a checkpoint."""


class MissingCheckpointError(CheckpointError, FileNotFoundError):
    """There is no checkpoint in that place."""


class DamagedCheckpointError(CheckpointError, RuntimeError):
    """Truncated, changed since it was written, or never a checkpoint."""


class NewerCheckpointError(CheckpointError, RuntimeError):
    """Of a version that this package does not know."""


class UnsavableError(CheckpointError, TypeError):
    """A value that a checkpoint cannot hold."""


class MismatchError(CheckpointError, RuntimeError):
    """The checkpoint does not fit what it is loaded into."""


class ReplicasDifferError(CheckpointError, RuntimeError):
    """Replicas save one state together, and a tensor of it is not the same in all."""


class FailedSaveError(CheckpointError, RuntimeError):
    """A save in the background did not succeed."""
