"""Other names for the same data, and changes of a tensor's metadata: detach, clone, set_, resize_."""

from __future__ import annotations

import math
from typing import Any

import torch

from xla_core.engine.tensor import loading
from xla_core.engine.tensor.layouts import in_format
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.sharding import with_sharding_of
from xla_core.engine.tensor.tensor import set_data, view_of, wrap
from xla_core.engine.tensor.values import value_of

aten = torch.ops.aten


def alias(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same data under another tensor: detach, alias, lift_fresh."""
    tensor = args[0]
    same = view_of(tensor._storage, tensor._view, tensor)
    # Without it, reading the alias would compute the view again.
    same._seen = tensor._seen
    return same


def clone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Independent data. Values are immutable, so the copy shares the value until one side is written to."""
    value = value_of(args[0])
    if "memory_format" in kwargs:
        value = in_format(value, kwargs["memory_format"])
    return with_sharding_of(args[0], wrap(value))


def set_source(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`target.set_(source)`: the target becomes another name of the data in the source's memory, which a lazy conjugate does not change."""
    source = ours(args[1])
    if source.is_conj():
        source = torch.ops.aten._conj.default(source)
    if source.is_neg():
        source = torch.ops.aten._neg_view.default(source)
    set_data(ours(args[0]), view_of(source._storage, source._view))
    return args[0]


def resize_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.resize_(shape)`: another window over the tensor's storage, which grows by zeros where it is too small."""
    tensor, shape = args[0], tuple(args[1])
    memory_format = kwargs.get("memory_format")
    if any(size < 0 for size in shape):
        raise RuntimeError(f"resize_: sizes cannot be negative, found {list(shape)}")
    if tuple(tensor.shape) != shape or memory_format is not None:
        strides = torch.empty(shape, device="meta", memory_format=memory_format or torch.contiguous_format).stride()
        start, storage = tensor.storage_offset(), ours(tensor)._storage
        held = storage.value.aval.nbytes // tensor.itemsize
        flat = view_of(storage, None).as_strided((math.prod(storage.value.aval.shape),), (1,), 0).view(tensor.dtype)
        if start + math.prod(shape) > held:
            flat = torch.cat([flat, flat.new_empty(start + math.prod(shape) - held)])
        set_data(tensor, flat.as_strided(shape, strides, start))
    return tensor


def resize_as_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.resize_as_(template)`."""
    memory_format = kwargs.get("memory_format")
    if memory_format is torch.preserve_format:
        memory_format = next((known for known in _FORMATS if args[1].is_contiguous(memory_format=known)), torch.contiguous_format)
    return resize_((args[0], args[1].shape), {"memory_format": memory_format})


_FORMATS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)


def is_set_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors are the same window over the same storage."""
    one, other = ours(args[0]), ours(args[1])
    windows = [(tensor._storage, tensor.storage_offset(), tensor.shape, tensor.stride()) for tensor in (one, other)]
    return windows[0] == windows[1]


HANDLERS: dict[str, Handler] = {
    "is_set_to": is_set_to,
    "detach": alias,
    "alias": alias,
    "lift_fresh": alias,
    "lift": alias,
    "clone": clone,
    "lift_fresh_copy": clone,
    "alias_copy": clone,
    "detach_copy": clone,
    "set_.source_Tensor": set_source,
    "set_.source_Storage": loading.take,
    "set_.source_Storage_storage_offset": loading.take,
    "resize_": resize_,
    "resize_as_": resize_as_,
}
