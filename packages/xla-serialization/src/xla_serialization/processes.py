"""Processes that save one checkpoint together, and how they tell each other things. A process on its own, or a replica, meets nobody."""

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

import torch_xla.runtime as xr
from xla_serialization.core import abi
from xla_serialization.errors import CheckpointError

Meet = Callable[[str], list[str]]
"""Gives what each process says, by number. All must call it equally often."""


@dataclass(frozen=True)
class Party:
    """This process's number among those that save together, and how many they are."""

    index: int = 0
    count: int = 1
    meet: Meet = lambda text: [text]

    def exchange(self, told: Any) -> list[Any]:
        """Exchange JSON with all processes; returns what each told, by number."""
        return [told] if self.count == 1 else [json.loads(text) for text in self.meet(json.dumps(told))]

    @contextmanager
    def agreed(self, consequence: str = "nothing was saved") -> Iterator[None]:
        """A block that each process runs. If it raised in one, all raise: that one its error, others CheckpointError with what it was."""
        failure: BaseException | None = None
        try:
            yield
        except BaseException as error:
            failure = error
        said = self.exchange(None if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        failed = [f"process {number}: {text}" for number, text in enumerate(said) if text is not None]
        if failed:
            raise CheckpointError(f"{consequence}, because of {'; '.join(failed)}")


def party() -> Party:
    """The processes of an SPMD program, which meet on its devices: to be used where programs run in the same order in all of them."""
    return Party(xr.process_index(), xr.process_count(), _on_devices) if spread() else Party()


def spread() -> bool:
    """Whether tensors on `xla` lie over several processes."""
    return xr.is_spmd() and xr.process_count() > 1


def _on_devices(text: str) -> list[str]:
    abi.client()  # jax, which is asked below, is told of the job when the core starts it
    mine = np.frombuffer(text.encode(), np.uint8)
    lengths = np.ravel(multihost_utils.process_allgather(np.array([mine.size], np.int32)))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: mine.size] = mine
    rows = multihost_utils.process_allgather(padded)
    return [row[:length].tobytes().decode() for row, length in zip(np.reshape(rows, (len(lengths), -1)), lengths, strict=True)]


def parties(group: dist.ProcessGroup | None, number: int) -> list[Party]:
    """The members of a process group, `number` times: each of these may meet in a thread of its own, whatever the devices do.

    group: of CPU processes; None for all of torch.distributed, or for a process on its own. All members must call.
    Raises ValueError for a group of other devices, one that leaves out processes of an SPMD program, and none where there are several.
    """
    if group is not None and "cpu:" not in dist.get_backend_config(group):
        raise ValueError(
            f"the process group is for {dist.get_backend_config(group)!r}; checkpoints need one of CPU processes: "
            "pass torch.distributed.new_group(backend='gloo')"
        )
    count = xr.process_count()
    if group is None and not (dist.is_available() and dist.is_initialized()):
        if count > 1:
            raise ValueError(
                f"{count} processes save together through torch.distributed: call torch.distributed.init_process_group('gloo') before"
            )
        return [Party()] * number
    ranks = dist.get_process_group_ranks(group or dist.GroupMember.WORLD)
    if xr.is_spmd() and len(ranks) != count:
        raise ValueError(f"the process group has {len(ranks)} of {count} processes of this SPMD program, and tensors lie over all of them")
    if len(ranks) == 1:
        return [Party()] * number
    made = [dist.new_group(ranks, backend="gloo", use_local_synchronization=True) for _ in range(number)]
    return [Party(ranks.index(dist.get_rank()), len(ranks), functools.partial(_in_group, one, len(ranks))) for one in made]


def _in_group(group: dist.ProcessGroup, count: int, text: str) -> list[str]:
    said: list[str] = [""] * count
    dist.all_gather_object(said, text, group=group)
    return said


def any_of(together: Party, flags: Sequence[bool]) -> list[bool]:
    """For each flag, whether it is set in any process."""
    return [any(column) for column in zip(*together.exchange(list(flags)), strict=True)]
