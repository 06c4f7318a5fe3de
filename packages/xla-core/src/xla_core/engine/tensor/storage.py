"""The storage behind tensors on the device: the current value, and the object by which torch tells which tensors share data."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.graph.pending_graph import Value, blank_value


class UnsupportedStorageError(UnsupportedOperationError):
    """The data of an xla tensor has no host address."""


class Storage:
    """The storage of a tensor, its aliases and its views: the current value of the whole base.

    annotations: shardings that were asked for the data and for views of it, by key; None when there are none.
    """

    __slots__ = ("__weakref__", "annotations", "value")

    value: Value
    annotations: dict[Any, Any] | None


class SharedStorage(torch.UntypedStorage):
    """Stands for data on the device: the same object for all tensors that share it, with its size.

    behind: the storage, None once no tensor shows it. number: its `data_ptr`; 0 for a copy, which stands for no data.
    """

    behind: Callable[[], Storage | None]
    number: int = 0

    def data_ptr(self) -> int:
        """A number that tells this storage from all others, like an address, but nothing can be read there; 0 for an empty one."""
        return self.number if self.nbytes() else 0

    def resize_(self, size: int) -> SharedStorage:
        """Drop the data if `size` is 0, as torch's `fully_shard` does; resized again, it is zeros until it is written to."""
        storage = self.behind()
        if size == 0 and storage is not None:
            storage.value = blank_value(storage.value.recorder, storage.value.aval)
        super().resize_(size)
        return self


class _Numbers:
    """Gives each storage a range of numbers, one for each byte, so that tensors overlap in numbers where they overlap in data.

    They begin where no process has memory: code that uses one as an address fails at once.
    """

    def __init__(self) -> None:
        self._next = 1 << 55
        self._lock = threading.Lock()

    def take(self, size: int) -> int:
        """The first of `size` numbers; a multiple of 512, like the addresses of device allocators."""
        with self._lock:
            first = self._next
            self._next += max(512, -(-size // 512) * 512)
        return first


_numbers = _Numbers()
_storages: weakref.WeakKeyDictionary[Storage, SharedStorage] = weakref.WeakKeyDictionary()


def shared_storage(storage: Storage) -> SharedStorage:
    """The stand-in for a storage; made at first use."""
    shared = _storages.get(storage)
    if shared is None:
        size = storage.value.aval.nbytes
        fresh = SharedStorage(size, device="meta")  # type: ignore[no-untyped-call]
        fresh.behind = weakref.ref(storage)
        fresh.number = _numbers.take(size)
        shared = _storages.setdefault(storage, fresh)  # another thread may have been first
    return shared
