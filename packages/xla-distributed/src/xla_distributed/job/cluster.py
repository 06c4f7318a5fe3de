"""Jobs that a cluster's manager has started (Slurm, Open MPI, Kubernetes, Cloud TPU), as jax.distributed detects them.

What the manager says is put into torchrun's variables, which everything else reads, torch's `env://` included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from xla_core.abi.process import device_kind
from xla_core.abi.settings import LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, RANK, WORLD_SIZE
from xla_distributed import settings
from xla_distributed._compat import clusters
from xla_distributed.errors import JobError


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts of a TPU slice whose manager starts one process on each, and which of them this is."""

    index: int
    count: int


@cache
def adopt() -> Hosts | None:
    """Adopt the job in which a cluster's manager has started this process as one of several, unless a job is set; looks once.

    Returns the hosts of a TPU slice, since each is to start a replica for each chip.
    Raises JobError if a manager is there but does not say enough.
    """
    if WORLD_SIZE.get() is not None or RANK.get() is not None:
        return None
    manager = next((name for name in clusters() if _is_there(name)), None)
    return None if manager is None else _adopt(manager, clusters()[manager])


def hosts() -> Hosts | None:
    """The hosts of the TPU slice on which this process is to start replicas; None if there is no other host, or it is a replica itself."""
    return adopt() if LOCAL_WORLD_SIZE.get() is None else None


def _is_there(name: str) -> bool:
    """True if a manager has started this process, and not a user in a shell on one of its machines."""
    if name == "Slurm" and settings.SLURM_STEP_NUM_TASKS.get() == 1:  # a shell in an allocation for several
        return False
    if name == "Kubernetes" and settings.JOB_COMPLETION_INDEX.get() is None:  # a pod that is no part of a job with numbers
        return False
    return bool(clusters()[name].is_env_present()) and (not name.startswith(_TPU) or device_kind() == "TPU")


_TPU = "Cloud TPU"


def _adopt(name: str, cluster: Any) -> Hosts | None:
    """Put what a manager says into torchrun's variables, unless this process is its only one."""
    try:
        size = int(cluster.get_process_count())
        if size == 1:
            return None
        rank, local_rank = int(cluster.get_process_id()), int(cluster.get_local_process_id() or 0)
        wait = max(1, round(settings.COLLECTIVE_TIMEOUT_SECONDS.get()))
        address = str(cluster.get_coordinator_address(timeout_secs=wait, override_coordinator_port=None))
        host, port = address.rpartition(":")[0].strip("[]"), int(address.rpartition(":")[2])
    except (RuntimeError, ValueError, KeyError, TypeError, OSError, ImportError) as error:
        raise JobError(
            f"{name} has started this process, but does not say as which of how many ({type(error).__name__}: {error}): "
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or WORLD_SIZE=1 for a process on its own"
        ) from error
    RANK.set(rank)
    WORLD_SIZE.set(size)
    LOCAL_RANK.set(local_rank)
    MASTER_ADDR.set(MASTER_ADDR.get() or host)
    settings.MASTER_PORT.set(settings.MASTER_PORT.get() or port)
    return Hosts(rank, size) if name.startswith(_TPU) else None
