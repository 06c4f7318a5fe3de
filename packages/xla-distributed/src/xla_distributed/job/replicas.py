"""Helpers of programs in several processes: models made once, work done by one process at a time, groups."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from xla_core.abi.declarations import budget
from xla_core.abi.job import world_size
from xla_distributed.job import connection
from xla_distributed.job.launch import replica_count, start_replicas, wait_for_all

T = TypeVar("T")


class MpModelWrapper:
    """A model that is made in the launching process and moved to the device in each replica.

    With start method `fork` its host memory is shared until the move.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """The model on `device`; replicas of a host move it one after the other, to need the memory of one move only."""
        return MpSerialExecutor().run(lambda: self._model.to(device))


class MpSerialExecutor:
    """Runs a function in one replica of the job at a time, in order of the ordinals."""

    def run(self, fn: Callable[[], T]) -> T:
        """Run `fn()` and return its result when all replicas have run theirs."""
        if world_size() == 1:
            return fn()
        client = connection.job_client()

        def wait_for(turns: range) -> None:
            for turn in turns:
                client.exchange("serial", b"", connection.timeout(), f"MpSerialExecutor: turn of replica {turn}")

        wait_for(range(client.rank))
        result = fn()
        wait_for(range(client.rank, client.size))
        return result


@budget()
def create_optimized_replica_groups() -> list[list[int]] | None:
    """Groups for collectives on this hardware; None: one group of all is best."""
    return None


@budget(compiles=None, reads=None)
def run_multiprocess(fn: Callable[..., Any], *args: Any, start_method: str = "spawn", **kwargs: Any) -> dict[int, Any]:
    """Run `fn(*args, **kwargs)` in a new process for each device of this host, also if it has one; what each returned, by ordinal.

    The results must pickle. Nothing of what `fn` makes, such as process groups, is left in this process. Raises as `spawn`.
    """
    with tempfile.TemporaryDirectory(prefix="xla-results-") as folder:
        wait_for_all(start_replicas(_keep_result, (folder, fn, args, kwargs), replica_count(), start_method=start_method))
        return {int(file.name): pickle.loads(file.read_bytes()) for file in sorted(Path(folder).iterdir(), key=_ordinal)}  # noqa: S301


def _ordinal(file: Path) -> int:
    return int(file.name)


def _keep_result(index: int, folder: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    (Path(folder) / str(index)).write_bytes(pickle.dumps(fn(*args, **kwargs)))
