"""`torch.load(map_location="xla:1")`: torch restores storages first and tensors over them, but xla tensors have no storage.

So a storage for an xla device stays on the host under another class, and each tensor that torch sets over it is
uploaded. Tensors that are the same window of one storage share their data, as tied weights do in the file.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.graph.aval import row_major
from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.storage import SharedStorage, Storage
from xla_core.engine.tensor.tensor import XLATensor, set_data, view_of, wrap


class HostStorage(torch.UntypedStorage):
    """Bytes of a file, on the host: tensors over them are uploaded to an xla device."""

    _target: torch.device
    _loaded: dict[Any, XLATensor]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device to which tensors over these bytes go."""
        return self._target


def _restore(storage: Any, location: str) -> Any:
    """torch's hook for a storage's location; None leaves it to other hooks."""
    if location.partition(":")[0] != "xla":
        return None
    target = recorder_of(location).device
    storage.__class__ = HostStorage
    storage._target = target
    storage._loaded = {}
    return storage


def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.set_(storage, offset, size, stride)`, for the storages of xla tensors and those that torch.load restores."""
    tensor, storage, *window = args
    source = storage.behind() if isinstance(storage, SharedStorage) else None
    if source is not None:
        set_data(tensor, _over(source, tensor.dtype, window))
        return tensor
    if not isinstance(storage, HostStorage):
        raise UnsupportedOperationError("set_ over a storage needs host memory, which xla tensors do not have: copy the values with copy_")
    key = (tensor.dtype, *[tuple(part) if isinstance(part, (list, tuple)) else part for part in window])
    loaded = storage._loaded.get(key)
    if loaded is None:
        on_host = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(storage, *window)
        loaded = storage._loaded[key] = wrap(upload(on_host, recorder_of(storage._target)))
    set_data(tensor, view_of(loaded._storage, loaded._view))
    return tensor


def _over(storage: Storage, dtype: torch.dtype, window: list[Any]) -> torch.Tensor:
    """All elements of a storage in a row, or a window of them: offset, size and stride."""
    flat = view_of(storage, None).as_strided((math.prod(storage.value.aval.shape),), (1,), 0).view(dtype)
    if not window:
        return flat
    offset, *layout = window
    size, stride = layout if len(layout) == 2 else (layout[0], row_major(layout[0]))
    return flat.as_strided(size, stride, offset)


def register() -> None:
    """Register with torch.load, before torch's own entry for the device, which allocates a storage there."""
    torch.serialization.register_package(9, lambda storage: None, _restore)
