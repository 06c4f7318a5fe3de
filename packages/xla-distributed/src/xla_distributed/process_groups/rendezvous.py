"""How `torch.distributed` finds the job of this process: `init_method="xla://"`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import HashStore, Store  # type: ignore[attr-defined]

from xla_core.abi.job import ordinal, topology, world_size
from xla_core.abi.targets import become_replica, planned_devices
from xla_distributed import settings
from xla_distributed.job import connection


class DummyStore(Store):
    """A store that keeps nothing and waits for nobody: process groups of backend `xla` need none, and one costs a connection a process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def set(self, key: str, value: str | bytes) -> None:
        """Drop the value."""

    def get(self, key: str) -> bytes:
        """Raise RuntimeError: there is nothing."""
        raise RuntimeError(f"{key!r} is not in this store, which keeps nothing: unset {settings.USE_DUMMY_STORE.name} for one that does")

    def add(self, key: str, value: int) -> int:
        """The value, as of a key that was not there."""
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for nothing."""


def rendezvous(url: str, timeout: timedelta = dist.default_pg_timeout, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """Torch's `init_method="xla://"`, also under its old name `pjrt://`: rank, size and a store from the job of this process.

    A process that plans for a target becomes the first replica of as many as that has devices.
    """
    if planned_devices() > 1 and not topology().replicas:
        become_replica(planned_devices())
    rank, size = ordinal(), world_size()
    if settings.USE_DUMMY_STORE.get():
        yield DummyStore(), rank, size
    elif size == 1:
        yield HashStore(), 0, 1
    else:
        yield connection.torch_store(timeout), rank, size
