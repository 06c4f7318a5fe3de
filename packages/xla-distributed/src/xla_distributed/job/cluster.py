"""Jobs that a cluster's manager has started (Slurm, Open MPI, Kubernetes, Cloud TPU), as jax.distributed detects them.

What the manager says is put into torchrun's variables, which everything else reads, torch's `env://` included.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch_xla.runtime as xr
from xla_distributed import settings
from xla_distributed._compat import clusters
from xla_distributed.errors import JobError


@cache
def adopt() -> None:
    """If nothing says yet which job this process belongs to, and a manager has started it as one of several, say so; looks once.

    Raises JobError if a manager is there but does not say enough.
    """
    if settings.WORLD_SIZE.get() is not None or settings.RANK.get() is not None:
        return
    found = next((name for name in clusters() if _is_there(name)), None)
    if found is not None:
        _adopt(found, clusters()[found])


def _is_there(name: str) -> bool:
    """True if a manager has started this process, and not a user in a shell on a machine of its."""
    if name == "Slurm" and settings.SLURM_STEP_NUM_TASKS.get() == 1:  # a shell in an allocation for several
        return False
    if name == "Kubernetes" and settings.JOB_COMPLETION_INDEX.get() is None:  # a pod that is no part of a job with numbers
        return False
    return bool(clusters()[name].is_env_present()) and (not name.startswith("Cloud TPU") or xr.device_type() == "TPU")


def _adopt(name: str, cluster: Any) -> None:
    """Put what a manager says into torchrun's variables, unless this process is its only one."""
    try:
        size = int(cluster.get_process_count())
        if size == 1:
            return
        rank, local_rank = int(cluster.get_process_id()), int(cluster.get_local_process_id() or 0)
        wait = max(1, round(settings.COLLECTIVE_TIMEOUT_SECONDS.get()))
        address = str(cluster.get_coordinator_address(timeout_secs=wait, override_coordinator_port=None))
        host, port = address.rpartition(":")[0].strip("[]"), int(address.rpartition(":")[2])
    except (RuntimeError, ValueError, KeyError, TypeError, OSError) as error:
        raise JobError(
            f"{name} has started this process, but does not say as which of how many ({type(error).__name__}: {error}): "
            "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or WORLD_SIZE=1 for a process on its own"
        ) from error
    settings.RANK.set(rank)
    settings.WORLD_SIZE.set(size)
    settings.LOCAL_RANK.set(local_rank)
    settings.MASTER_ADDR.set(settings.MASTER_ADDR.get() or host)
    settings.MASTER_PORT.set(settings.MASTER_PORT.get() or port)
