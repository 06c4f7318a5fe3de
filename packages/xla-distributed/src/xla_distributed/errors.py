"""Errors between replicas. Each is a RuntimeError, as collectives that fail are in stock torch.

JobError
├── ReplicaLostError       another replica has died or has left the job
├── ReplicaTimeoutError    another replica did not arrive in time
├── CollectiveMismatchError  replicas disagree on their collectives
│   └── ProgramCutError      another replica has a shorter program: a part of this one's has to run first
└── ModeError              SPMD mode has one program, not replicas
"""

from __future__ import annotations

from xla_core.abi.graph import PartFirstError
from xla_core.abi.process import XlaError


class LoaderClosedError(Exception):
    """A loader was closed while its threads still read."""


class JobError(XlaError, RuntimeError):
    """Something is wrong between the replicas of a job."""


class ReplicaLostError(JobError):
    """Another replica has died or has left the job."""


class ReplicaTimeoutError(JobError):
    """Another replica did not arrive in time."""


class ModeError(JobError):
    """SPMD mode has one program over all devices, not replicas."""


class CollectiveMismatchError(JobError):
    """Replicas disagree on their collectives."""


class ProgramCutError(CollectiveMismatchError, PartFirstError):
    """Replicas run the same collectives in the same order, but another one ends its program after `shared` of them."""

    def __init__(self, text: str, shared: int) -> None:
        super().__init__(text)
        self.shared = shared


def timed_out(seconds: float, awaited: str) -> ReplicaTimeoutError:
    """The error of a call that waited as long as it may. awaited: for what, in words."""
    return ReplicaTimeoutError(f"waited {seconds:g} s, the timeout of this call, for {awaited}")
