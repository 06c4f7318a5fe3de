"""The processes that save one checkpoint together: they exchange JSON, and raise errors together."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.distributed as dist
from jax.experimental import multihost_utils

from xla_serialization.core import job, process
from xla_serialization.errors import CheckpointError

Gather = Callable[[str], list[str]]
"""Gathers one text from each process, in their order. All must call it equally often."""


@dataclass(frozen=True)
class Participants:
    """The processes that save together: this one's index, and their count. By default a process, or a replica, on its own."""

    index: int = 0
    count: int = 1
    gather: Gather = lambda text: [text]

    def all_gather(self, value: Any) -> list[Any]:
        """Gather one JSON value from each process, in their order."""
        return [value] if self.count == 1 else [json.loads(text) for text in self.gather(json.dumps(value))]

    @contextmanager
    def raise_together(self, consequence: str = "nothing was saved") -> Iterator[None]:
        """Run a `with` block in each process. If one raises, all do: that one its own error, the others CheckpointError with its text."""
        failure: BaseException | None = None
        try:
            yield
        # KeyboardInterrupt, too: the others wait in the exchange below.
        except BaseException as error:
            failure = error
        failures = self.all_gather(None if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        failed = [f"process {index}: {text}" for index, text in enumerate(failures) if text is not None]
        if failed:
            raise CheckpointError(f"{consequence}, because of {'; '.join(failed)}")


def spmd_participants() -> Participants:
    """The processes of an SPMD program. They exchange data on its devices, so programs must run in the same order in all of them."""
    return Participants(job.topology().process_index, job.topology().process_count, _on_devices) if spans_processes() else Participants()


def spans_processes() -> bool:
    """Whether tensors on `xla` are sharded over the devices of several processes."""
    return job.is_spmd() and job.topology().process_count > 1


def _on_devices(text: str) -> list[str]:
    mine = np.frombuffer(text.encode(), np.uint8)
    # Devices gather equal shapes only: lengths first, then texts as long as the longest.
    lengths = gather_bytes(np.frombuffer(np.int64(mine.size).tobytes(), np.uint8)).copy().view(np.int64).ravel()
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: mine.size] = mine
    return [row[:length].tobytes().decode() for row, length in zip(gather_bytes(padded), lengths, strict=True)]


def gather_bytes(data: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Gather equally many bytes from each process of an SPMD program, as rows. Runs on its devices: all must call."""
    process.client()  # the core starts jax's part of the job, which `process_allgather` needs
    return np.reshape(multihost_utils.process_allgather(data), (job.topology().process_count, -1))


def group_participants(group: dist.ProcessGroup | None, copies: int) -> list[Participants]:
    """The processes of a process group, in `copies` new groups: each may be used in a thread of its own, beside programs on devices.

    group: for CPU tensors; None for all processes of torch.distributed, or for a process on its own. All its processes must call.
    Raises ValueError for a group of other devices, one that leaves out processes of an SPMD program, and None for several processes
    without torch.distributed.
    """
    if group is not None and "cpu:" not in dist.get_backend_config(group):
        raise ValueError(
            f"the process group is for {dist.get_backend_config(group)!r}; checkpoints need one of CPU processes: "
            "pass torch.distributed.new_group(backend='gloo')"
        )
    count = job.topology().process_count
    if group is None and not (dist.is_available() and dist.is_initialized()):
        if count > 1:
            raise ValueError(
                f"{count} processes save together through torch.distributed: call torch.distributed.init_process_group('gloo') before"
            )
        return [Participants()] * copies
    ranks = dist.get_process_group_ranks(group or dist.GroupMember.WORLD)
    if job.is_spmd() and len(ranks) != count:
        raise ValueError(
            f"the process group has {len(ranks)} of {count} processes of this SPMD program, and tensors are sharded over all of them"
        )
    if len(ranks) == 1:
        return [Participants()] * copies
    # use_local_synchronization: only members call this, and others may exist.
    groups = [dist.new_group(ranks, backend="gloo", use_local_synchronization=True) for _ in range(copies)]
    return [Participants(ranks.index(dist.get_rank()), len(ranks), functools.partial(_in_group, gloo, len(ranks))) for gloo in groups]


def _in_group(group: dist.ProcessGroup, count: int, text: str) -> list[str]:
    texts: list[str] = [""] * count
    dist.all_gather_object(texts, text, group=group)
    return texts


def any_of(participants: Participants, flags: Sequence[bool]) -> list[bool]:
    """For each flag, whether it is set in any process."""
    return [any(column) for column in zip(*participants.all_gather(list(flags)), strict=True)]


def is_writer(master_only: bool, global_master: bool) -> bool:
    """Whether this replica writes: each host's master, the job's only if `global_master`, all unless `master_only`."""
    return not master_only or (job.ordinal() if global_master else job.local_ordinal()) == 0
