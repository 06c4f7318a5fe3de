"""A state to save or to load into: the tree of its nesting, and its tensors by name."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from xla_serialization.checkpoint.dtensors import is_dtensor, local_block
from xla_serialization.core import tensors as tensors_abi
from xla_serialization.errors import UnsavableError
from xla_serialization.format.dtypes import name_of
from xla_serialization.format.limits import MOST_DIMS
from xla_serialization.format.manifest import Tree
from xla_serialization.format.tree import encode, free_name, where


@dataclass(frozen=True)
class FlatState:
    """A state in parts. own: the trees of this process's own values (`PerProcess`), which `tree` refers to by index.

    own_tensors: the names of tensors that occur only in these.
    """

    tree: Tree
    tensors: dict[str, torch.Tensor]
    own: tuple[Tree, ...] = ()
    own_tensors: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def flatten(data: Any, process: int = 0) -> FlatState:
    """Split a nesting into its tree and its named tensors; aliases of the same elements have one name. Raises UnsavableError.

    process: the index of this process among those that save together.
    """
    named: dict[str, torch.Tensor] = {}
    seen: dict[Hashable, str] = {}

    def name(tensor: torch.Tensor, keys: tuple[str, ...]) -> str:
        _check(tensor, keys)
        key = _key(tensor)
        if key not in seen:
            seen[key] = free_name(keys, named)
            # Keeps the tensor alive until all are named: the id or address of a freed tensor would be used again.
            named[seen[key]] = tensor
        return seen[key]

    tree, marked = encode(data, name)
    shared = frozenset(named)
    own = tuple(mark(name, process) for mark in marked)
    return FlatState(tree, named, own, frozenset(named) - shared)


def _check(tensor: torch.Tensor, keys: tuple[str, ...]) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or name_of(tensor.dtype) is None:
        description = "quantized" if tensor.is_quantized else str(tensor.layout if tensor.layout is not torch.strided else tensor.dtype)
        raise UnsavableError(f"{where(keys)}: a {description} tensor cannot be saved; save a dense tensor of numbers")
    if tensor.dim() > MOST_DIMS:
        raise UnsavableError(f"{where(keys)}: a tensor of {tensor.dim()} dimensions, of {MOST_DIMS} at most; save a reshaped one")
    if tensor.device.type == "meta":
        raise UnsavableError(f"{where(keys)}: a tensor on the meta device has no data to save")
    if is_dtensor(tensor):
        try:
            local_block(tensor)
        except ValueError as error:
            raise UnsavableError(f"{where(keys)}: {error}, or save its full_tensor()") from None


def _key(tensor: torch.Tensor) -> Hashable:
    """Make a key that is equal exactly for tensors that alias the same elements of the same memory."""
    inner = unwrapped(tensor)
    if is_dtensor(inner):
        block = local_block(inner)
        return id(tensor) if block is None else (_key(block.data), block.offset, inner.shape)
    if inner.device.type == "xla":
        return tensors_abi.alias_key(inner)
    if inner.device.type == "meta" or not inner.numel():
        return id(tensor)
    return (inner.device, inner.data_ptr(), inner.dtype, inner.shape, inner.stride(), inner.is_conj(), inner.is_neg())


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a wrapper (XLAShardedTensor) stands for; any other as it is."""
    inner: torch.Tensor = getattr(tensor, "global_tensor", tensor)
    return inner
