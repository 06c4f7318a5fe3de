"""The storage behind tensors on the device: the current value, and the object by which torch tells who shares data."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from xla_core.errors import UnsupportedOperationError
from xla_core.ir.pending_graph import Value, blank_value


class UnsupportedStorageError(UnsupportedOperationError):
    """The data of an xla tensor has no host address."""


class Storage:
    """The storage of a tensor, its aliases and its views: the current value of the whole base.

    annotations: what plugins attach to the data (a sharding, say), by their own key; None when there is nothing.
    """

    __slots__ = ("__weakref__", "annotations", "value")

    value: Value
    annotations: dict[Any, Any] | None


class SharedStorage(torch.UntypedStorage):
    """Stands for data on the device: the same object for all tensors that share it, with its size but no address.

    behind: the storage, None once no tensor shows it.
    """

    behind: Callable[[], Storage | None]

    def data_ptr(self) -> int:
        """Raises RuntimeError: there is no address that the host could use."""
        raise UnsupportedStorageError("an xla tensor has no storage that the host could address; use .cpu()")

    def resize_(self, size: int) -> SharedStorage:
        """Give up the data for a size of 0, as torch's `fully_shard` does; resized again it is zeros until somebody writes."""
        storage = self.behind()
        if size == 0 and storage is not None:
            storage.value = blank_value(storage.value.recorder, storage.value.aval)
        super().resize_(size)
        return self


_storages: weakref.WeakKeyDictionary[Storage, SharedStorage] = weakref.WeakKeyDictionary()


def shared_storage(storage: Storage) -> SharedStorage:
    """The stand-in for a storage; made at first use."""
    found = _storages.get(storage)
    if found is None:
        found = _storages[storage] = SharedStorage(storage.value.aval.nbytes, device="meta")  # type: ignore[no-untyped-call]
        found.behind = weakref.ref(storage)
    return found
