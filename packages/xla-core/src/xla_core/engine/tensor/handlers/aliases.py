"""Other names for the same data, and changes of a tensor's metadata: detach, clone, set_, resize_."""

from __future__ import annotations

import math
from typing import Any

import torch

from xla_core.engine.tensor import loading
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
    if "memory_format" in kwargs:
        check_format(args[0], kwargs["memory_format"])
    return with_sharding_of(args[0], wrap(value_of(args[0])))


def check_format(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> None:
    """Raise torch's error if a memory format does not fit a tensor's number of dimensions; whatever it is, all tensors look contiguous."""
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        torch.empty(tensor.shape, memory_format=memory_format, device="meta")


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
    """`tensor.resize_(shape)`: keeps the leading elements; new ones are zero."""
    tensor, shape = args[0], tuple(args[1])
    if tuple(tensor.shape) == shape:
        return tensor
    if any(size < 0 for size in shape):
        raise RuntimeError(f"resize_: sizes cannot be negative, found {list(shape)}")
    flat = tensor.detach().clone().view(-1)  # below autograd no composite operation can be called
    count = math.prod(shape)
    flat = torch.cat([flat, flat.new_zeros(max(count - flat.numel(), 0))])
    set_data(tensor, flat[:count].view(shape).clone())
    return tensor


def resize_as_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.resize_as_(template)`."""
    return resize_((args[0], args[1].shape), {})


HANDLERS: dict[str, Handler] = {
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
