"""Copies between tensors, dtypes and devices: copy_, Tensor.to."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.runtime.transfer import on_host
from xla_core.engine.tensor.layouts import in_format
from xla_core.engine.tensor.overlaps import check_overlap
from xla_core.engine.tensor.recorded import recorded
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.sharding import upload_to, uploaded, with_sharding_of
from xla_core.engine.tensor.tensor import XLATensor, wrap
from xla_core.engine.tensor.values import cpu_copies, moved, value_of
from xla_core.engine.tensor.writes import write

aten = torch.ops.aten


def copy_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`target.copy_(source)` across any pair of devices; shares the value when nothing has to change."""
    target: Any = args[0]
    source: Any = args[1] if isinstance(args[1], torch.Tensor) else torch.tensor(args[1], device="cpu")
    _warn_of_lost_parts(source.dtype, target.dtype)
    if type(target) is not XLATensor:
        return target.copy_(cpu_copies((source,))[0])
    storage = target._storage
    recorder = storage.value.recorder
    if type(source) is XLATensor:
        if source._storage is storage:
            if source._view is target._view:
                return target
            check_overlap(aten.copy_.default, storage, (target, source), {})
        value = moved(value_of(source), recorder)
    else:
        source = _with_shape(source)
        # The host casts a source of the target's shape; one that is broadcast is uploaded small, and the program casts it.
        fits = source.shape == target.shape
        value = upload_to(target, on_host(source, target.dtype if fits else source.dtype, recorder), source)
    if value.aval.shape == tuple(target.shape) and value.aval.dtype == target.dtype:
        write(target, value)
        return target
    return recorded(aten.copy_.default)((target, wrap(value)), {})


def copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `target.copy_(source)` as a new tensor; across devices, too."""
    target, source, *rest = args
    if type(target) is not XLATensor:
        return target.clone().copy_(cpu_copies((source,))[0])
    if type(source) is not XLATensor and source.dim():
        source = to_copy((source,), {"device": target.device})
    return recorded(aten.copy.default)((target, source, *rest), kwargs)


def _with_shape(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or an empty one for a parameter of a lazy module, which has no shape yet."""
    return torch.empty(0, dtype=tensor.dtype, device="cpu") if is_lazy(tensor) else tensor


def _warn_of_lost_parts(source: torch.dtype, target: torch.dtype) -> None:
    """torch's own warning for a copy of complex numbers to real ones; it appears once in a process."""
    if source.is_complex and not target.is_complex:
        torch.zeros(1, dtype=source, device="cpu").to(target)


def to_copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.to`: another dtype, another device, or both."""
    tensor = args[0]
    dtype = kwargs.get("dtype") or tensor.dtype
    device = kwargs.get("device")
    target = None if device is None else torch.device(device)
    if type(tensor) is not XLATensor:
        recorder = recorder_of(target)
        return uploaded(on_host(_with_shape(tensor), dtype, recorder), recorder, tensor)
    memory_format = kwargs.get("memory_format") or torch.preserve_format
    if target is not None and target.type != "xla":
        if target.type == "meta":
            like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")
            return torch.empty_like(like, memory_format=memory_format)
        return cpu_copies((tensor,))[0].to(device=target, dtype=dtype, memory_format=memory_format)
    if dtype != tensor.dtype:
        _warn_of_lost_parts(tensor.dtype, dtype)
        tensor = recorded(aten._to_copy.default)((tensor,), {"dtype": dtype})
    value = in_format(value_of(tensor), memory_format)
    return with_sharding_of(args[0], wrap(value if target is None or target.index is None else moved(value, recorder_of(target))))


def copy_from(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`_copy_from(self, dst)`: how torch moves data where it does not call copy_."""
    return copy_((args[1], args[0]), {})


HANDLERS: dict[str, Handler] = {
    "copy": copy,
    "copy_": copy_,
    "_to_copy": to_copy,
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from,
}
