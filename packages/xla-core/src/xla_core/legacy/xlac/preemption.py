"""The job that processes join, and the step at which they save together when one of them is to end."""

from __future__ import annotations

import jax
from jax.experimental import multihost_utils

from xla_core.engine.runtime import client


class _Manager:
    """Whether somebody asks for notices."""

    active = False


def _ensure_xla_coordinator_initialized(global_rank: int, world_size: int, master_addr: str, master_port: str = "8547") -> None:
    """Connect this process to the others of a job, unless it is; rank 0 serves at `master_addr:master_port`.

    Raises RuntimeError if devices run already, or if the others do not come.
    """
    if jax.distributed.is_initialized():
        return
    if client.started():
        raise RuntimeError("the devices of this process run already, too late to connect it to others: call this before their first use")
    jax.distributed.initialize(f"{master_addr}:{master_port}", world_size, global_rank)


def _activate_preemption_sync_manager() -> None:
    """Heed notices (SIGTERM) that a process is to end. Raises RuntimeError if this process was not connected to a job."""
    if not jax.distributed.is_initialized():
        raise RuntimeError(
            "preemption notices go among the processes of a job, which this one has not joined: call _ensure_xla_coordinator_initialized "
            "first, or use a CheckpointManager, which heeds SIGTERM in a single process, too"
        )
    _Manager.active = True


def _deactivate_preemption_sync_manager() -> None:
    """Heed notices no more."""
    _Manager.active = False


def _sync_point_reached(step: int) -> bool:
    """Whether all processes of the job, of which one is to end, are at the step at which they save. Ask at each step, in all of them.

    Raises RuntimeError unless `_activate_preemption_sync_manager` was called.
    """
    if not _Manager.active:
        raise RuntimeError("nobody heeds preemption notices: call _activate_preemption_sync_manager first")
    return bool(multihost_utils.reached_preemption_sync_point(step))
