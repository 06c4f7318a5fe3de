"""The storage behind tensors on the device: the current value, and the object by which torch tells which tensors share data."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import warn_if_has_hooks

from xla_core.base import private_torch
from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.graph.aval import row_major
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

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device; `meta` once no tensor shows the data."""
        storage = self.behind()
        return torch.device("meta") if storage is None else storage.value.recorder.device

    def _bytes(self) -> torch.Tensor:
        """A tensor over the data. Raises UnsupportedStorageError once no tensor shows it."""
        if self.behind() is None:
            raise UnsupportedStorageError("no xla tensor shows the data of this storage any more: keep the tensor, and read its .cpu()")
        return torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)

    def _whole(self) -> torch.Tensor:
        """A tensor over the data in its own shape, so that no program has to make bytes of it."""
        storage = self.behind()
        if storage is None:
            return self._bytes()
        aval = storage.value.aval
        return torch.empty(0, dtype=aval.dtype, device=self.device).set_(self, 0, aval.shape, aval.strides or row_major(aval.shape))

    def cpu(self) -> torch.UntypedStorage:
        """A copy on the CPU."""
        shown = self._whole() if self.nbytes() else self._bytes()
        return shown.cpu().untyped_storage()

    def _write_file(self, *args: Any) -> Any:
        """Write the bytes to a file: torch.save's older format asks each storage to."""
        return self.cpu()._write_file(*args)

    def clone(self) -> torch.UntypedStorage:
        """A copy on the device."""
        copied = _kept(self._whole().clone())
        return copied if self.nbytes() else copied.resize_(0)

    def to(self, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
        """This storage, if it is on `device`, else a copy there."""
        there = torch.empty(0, dtype=torch.uint8, device=device).device  # with an index
        if there == self.device:
            return self
        return self.cpu() if there.type == "cpu" else _kept(self._bytes().to(there))

    def tolist(self) -> list[int]:
        """The bytes: a value read."""
        return self._bytes().tolist()

    def __getitem__(self, index: Any) -> Any:
        return self.cpu()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._bytes()[index] = value

    def fill_(self, value: int) -> SharedStorage:
        """Set each byte."""
        self._bytes().fill_(value)
        return self

    def copy_(self, source: Any, non_blocking: bool | None = None) -> Any:
        """Take the bytes of a storage of the same size, wherever it is."""
        if source.nbytes() != self.nbytes():
            raise RuntimeError(f"size does not match, self was {self.nbytes()} bytes but src was {source.nbytes()} bytes")
        self._bytes().copy_(torch.empty(0, dtype=torch.uint8, device=source.device).set_(source))
        return self

    def resize_(self, size: int) -> SharedStorage:
        """Drop the data if `size` is 0, as torch's `fully_shard` does; resized again, it is zeros until it is written to."""
        storage = self.behind()
        if size == 0 and storage is not None:
            storage.value = blank_value(storage.value.recorder, storage.value.aval)
        super().resize_(size)
        return self


SharedStorage.__name__ = "UntypedStorage"  # torch.save names a storage's class, as one of torch's


def saved_parts(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What torch.save writes of a tensor: its window of a storage, which is written once for all tensors that show it."""
    warn_if_has_hooks(tensor)
    storage: Any = tensor.untyped_storage()
    window: tuple[Any, ...] = (tensor.storage_offset(), tuple(tensor.size()), tensor.stride(), tensor.requires_grad, OrderedDict())
    bits = private_torch.conj_and_neg_bits(tensor)
    rest = (bits,) if bits else ()
    if tensor.dtype in private_torch.dtypes_without_typed_storages():
        return private_torch.rebuild_tensor_of_new_dtype, (storage, *window, tensor.dtype, *rest)
    typed = torch.TypedStorage(wrap_storage=storage, dtype=tensor.dtype, _internal=True)
    return private_torch.rebuild_tensor, (typed, *window, *rest)


def _kept(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Another stand-in for the storage of a tensor, which keeps the data: that of the tensor itself does not, or no data would ever end."""
    shared: Any = tensor.untyped_storage()
    storage = shared.behind()
    kept = SharedStorage(shared.nbytes(), device="meta")  # type: ignore[no-untyped-call]
    kept.behind, kept.number = lambda: storage, shared.number
    return kept


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


def _new_storage(new: Callable[..., Any]) -> Any:
    def __new__(cls: type, *args: Any, device: Any = None, **others: Any) -> Any:
        if device is None or torch.device(device).type != "xla":
            return new(cls, *args, device=device, **others)
        on_host = torch.empty(0, dtype=torch.uint8).set_(new(cls, *args, **others))
        sized = not args or isinstance(args[0], int)
        return _kept(torch.empty_like(on_host, device=device) if sized else on_host.to(device))

    return __new__


def _copy(copy: Callable[..., Any]) -> Any:
    def copy_(storage: Any, source: Any, non_blocking: Any = None) -> Any:
        return copy(storage, source.cpu() if isinstance(source, SharedStorage) else source, non_blocking)

    return copy_


def _of_sequence(of_sequence: Callable[..., Any]) -> Any:
    def _get_storage_from_sequence(sequence: Any, dtype: torch.dtype, device: Any) -> Any:
        if torch.device(device).type != "xla":
            return of_sequence(sequence, dtype, device)
        return _kept(torch.tensor(sequence, dtype=dtype, device=device))

    return _get_storage_from_sequence


def _typed_storage(typed: Callable[..., Any]) -> Any:
    def _typed_storage(tensor: torch.Tensor) -> Any:
        storage = typed(tensor)
        if tensor.device.type == "xla":
            storage._shown_by = tensor
        return storage

    return _typed_storage


def _new_wrapped_storage(wrapped: Callable[..., Any]) -> Any:
    def _new_wrapped_storage(typed: torch.TypedStorage, untyped: torch.UntypedStorage) -> Any:
        if not isinstance(untyped, SharedStorage):
            return wrapped(typed, untyped)
        return torch.TypedStorage(wrap_storage=untyped, dtype=typed.dtype, _internal=True)

    return _new_wrapped_storage


def register() -> None:
    """Let torch's storages be on xla devices: untyped ones are made there and copied from there, typed ones keep the data."""
    private_torch.replace_in_torch(
        {
            (torch.UntypedStorage, "__new__"): _new_storage,
            (torch.UntypedStorage, "copy_"): _copy,
            (torch.storage, "_get_storage_from_sequence"): _of_sequence,
            (torch.TypedStorage, "_new_wrapped_storage"): _new_wrapped_storage,
            (torch.Tensor, "_typed_storage"): _typed_storage,
        }
    )
