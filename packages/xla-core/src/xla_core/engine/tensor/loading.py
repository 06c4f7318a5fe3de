"""`torch.load(map_location="xla:1")`: torch restores storages first, and sets tensors over them.

A storage for an xla device stays on the host under another class. It is uploaded when the first tensor is set over it;
later tensors are views of that one, so that those that shared data in the file do so again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from xla_core.base import private_torch
from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.graph.aval import row_major
from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.storage import SharedStorage, Storage
from xla_core.engine.tensor.tensor import XLATensor, set_data, view_of, wrap


class HostStorage(torch.UntypedStorage):
    """Bytes of a file, on the host: tensors over them are uploaded to an xla device."""

    _target: torch.device
    _uploaded: dict[torch.dtype, XLATensor]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device to which tensors over these bytes go."""
        return self._target

    def storage_for(self, dtype: torch.dtype, window: list[Any]) -> Storage:
        """The storage on the device that tensors of a dtype share. window: of the tensor that asks, and perhaps all of this."""
        whole, asked = self._on_host(dtype), self._on_host(dtype, *window)
        if dtype not in self._uploaded:
            if asked.numel() == whole.numel() and torch.empty_like(asked, device="meta").stride() == asked.stride():
                whole = asked  # in its own shape, it needs no view
            unread = private_torch.is_unread(self)
            there: Any = torch.empty_like(whole, device=self._target) if unread else wrap(upload(whole, recorder_of(self._target)))
            self._uploaded[dtype] = there
        return self._uploaded[dtype]._storage

    def _on_host(self, dtype: torch.dtype, *window: Any) -> torch.Tensor:
        return torch.empty(0, dtype=dtype, device="cpu").set_(self, *window)

    def _set_from_file(self, *args: Any) -> Any:
        """Read the bytes: in torch's older format they come behind the tensors."""
        super()._set_from_file(*args)  # type: ignore[no-untyped-call]
        private_torch.note_as_read(self)
        for there in self._uploaded.values():
            there.copy_(self._on_host(there.dtype, 0, there.shape, there.stride()))
        return self


def _location(storage: Any) -> str | None:
    """torch's hook for what a file says of a storage's device; None leaves it to other hooks."""
    return str(storage.device) if isinstance(storage, SharedStorage) else None


def _restore(storage: Any, location: str) -> Any:
    """torch's hook for a storage's location; None leaves it to other hooks."""
    if location.partition(":")[0] != "xla":
        return None
    return _for_device(storage, recorder_of(location).device)


def _for_device(storage: Any, target: torch.device) -> HostStorage:
    storage.__class__ = HostStorage
    storage._target = target
    storage._uploaded = {}
    return storage  # type: ignore[no-any-return]


def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.set_(storage, offset, size, stride)`, for the storages of xla tensors and those that torch.load restores."""
    tensor, storage, *window = args
    if isinstance(storage, HostStorage):
        source: Storage | None = storage.storage_for(tensor.dtype, window)
    else:
        source = storage.behind() if isinstance(storage, SharedStorage) else None
    if source is None:
        raise UnsupportedOperationError("set_ over a storage needs host memory, which xla tensors do not have: copy the values with copy_")
    set_data(tensor, _over(source, tensor.dtype, window))
    return tensor


def _over(storage: Storage, dtype: torch.dtype, window: list[Any]) -> torch.Tensor:
    """All elements of a storage in a row, or a window of them: offset, size and stride."""
    base = view_of(storage, None)
    if window and dtype is base.dtype and window[0] == 0 and window[1] == base.shape and tuple(window[-1]) == base.stride():
        return base
    flat = base.as_strided((math.prod(base.shape),), (1,), 0).view(dtype)
    if not window:
        return flat
    offset, *layout = window
    size, stride = layout if len(layout) == 2 else (layout[0], row_major(layout[0]))
    return flat.as_strided(size, stride, offset)


def _rebuilt(rebuild: Callable[..., Any]) -> Any:
    def _rebuild_device_tensor_from_cpu_tensor(data: torch.Tensor, dtype: torch.dtype, device: Any, requires_grad: bool) -> Any:
        """As other versions wrote tensors of device xla: the CPU's over bytes that the older format brings behind the tensors."""
        storage: Any = data.untyped_storage()
        if private_torch.is_unread(storage) and torch.device(device).type == "xla":
            loaded = torch.empty(0, dtype=data.dtype, device=device)
            data = loaded.set_(_for_device(storage, loaded.device), data.storage_offset(), data.size(), data.stride())
        return rebuild(data, dtype, device, requires_grad)

    return _rebuild_device_tensor_from_cpu_tensor


def _set_bits(set_bits: Callable[..., Any]) -> Any:
    def set_tensor_metadata(tensor: torch.Tensor, metadata: dict[str, bool]) -> None:
        """Set the conjugate and negative bits that a file has of a tensor: on xla the tensor becomes such a view."""
        if not isinstance(tensor, XLATensor):
            set_bits(tensor, metadata)
            return
        if metadata.get("conj"):
            set_data(tensor, tensor.detach().conj())
        if metadata.get("neg"):
            set_data(tensor, private_torch.negative_view(tensor.detach()))

    return set_tensor_metadata


def _is_storage(is_storage: Callable[[Any], bool]) -> Any:
    def is_storage_of_any_device(obj: Any, /) -> bool:
        return is_storage(obj) or isinstance(obj, (SharedStorage, HostStorage))

    return is_storage_of_any_device


def register() -> None:
    """Register with torch.load and torch.save, before torch's own entries for the device."""
    torch.serialization.register_package(9, _location, _restore)
    private_torch.replace_in_torch(
        {
            (private_torch.rebuilding, "_rebuild_device_tensor_from_cpu_tensor"): _rebuilt,
            (private_torch.rebuilding, "set_tensor_metadata"): _set_bits,
            (torch, "is_storage"): _is_storage,
        }
    )
