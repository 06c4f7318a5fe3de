"""Connects processes to a job, and agrees on a step at which all save when one is about to end."""

from __future__ import annotations

import jax
from jax.experimental import multihost_utils

from xla_core.engine.runtime import client


class _Manager:
    """Whether preemption notices are heeded."""

    active = False


def _ensure_xla_coordinator_initialized(global_rank: int, world_size: int, master_addr: str, master_port: str = "8547") -> None:
    """Connect this process to its job, unless it is connected. Rank 0 listens at `master_addr:master_port`.

    Raises RuntimeError if devices run already, or if other processes do not connect.
    """
    if jax.distributed.is_initialized():
        return
    if client.started():
        raise RuntimeError("the devices of this process run already, too late to connect it to others: call this before their first use")
    jax.distributed.initialize(f"{master_addr}:{master_port}", world_size, global_rank)


def _activate_preemption_sync_manager() -> None:
    """Heed preemption notices (SIGTERM). Raises RuntimeError if this process is not connected to a job."""
    if not jax.distributed.is_initialized():
        raise RuntimeError(
            "preemption notices go among the processes of a job, which this one has not joined: call _ensure_xla_coordinator_initialized "
            "first, or use a CheckpointManager, which heeds SIGTERM in a single process, too"
        )
    _Manager.active = True


def _deactivate_preemption_sync_manager() -> None:
    """Stop heeding preemption notices."""
    _Manager.active = False


def _sync_point_reached(step: int) -> bool:
    """Whether this is the step at which all processes of the job save, because one is about to end. Call it at each step in all of them.

    Raises RuntimeError unless `_activate_preemption_sync_manager` was called.
    """
    if not _Manager.active:
        raise RuntimeError("nobody heeds preemption notices: call _activate_preemption_sync_manager first")
    return bool(multihost_utils.reached_preemption_sync_point(step))
