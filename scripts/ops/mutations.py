"""Calls that may be refused: torch's own error inputs, and sample inputs with one thing changed; the same in every run."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.utils import _pytree as pytree

from entries import dtypes_of


class Change(Enum):
    """What is wrong with a call."""

    LISTED = "error input"
    DTYPE = "dtype"
    SIZE = "size"
    RANK = "dimensions"
    NUMBER = "number"
    DEVICE = "device"
    TYPE = "type"


@dataclass(frozen=True, slots=True)
class Case:
    """One call. arguments: input, positional and keyword arguments on the CPU. staying: the tensor that is not moved to the device."""

    change: Change
    arguments: tuple[Any, tuple[Any, ...], dict[str, Any]]
    what: str
    staying: int | None = None


# With some of these changes CPU torch writes beyond its memory.
UNSAFE = frozenset({"lu_unpack"})
_DTYPES = (torch.int64, torch.float64, torch.bool, torch.complex64, torch.uint8, torch.float32)
_NUMBERS = (9, -9, 0, -1)
_OBJECTS: tuple[Any, ...] = ("abc", None, [1, "b"], object)


def _pick(choices: Any, *key: Any) -> Any:
    """One of `choices`, by a hash of the rest."""
    return choices[zlib.crc32(repr(key).encode()) % len(choices)]


def _resized(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The tensor with one more element along a dimension, its first one again; three elements of one without dimensions."""
    if not tensor.dim():
        return tensor.expand(3).clone()
    extra = tensor.narrow(dim, 0, 1) if tensor.shape[dim] else tensor.new_zeros([1 if k == dim else n for k, n in enumerate(tensor.shape)])
    return torch.cat([tensor, extra], dim)


def _changes(leaf: Any, key: tuple[Any, ...]) -> Iterator[tuple[Change, Any]]:
    """One wrong replacement of each kind that fits a leaf of the arguments."""
    if isinstance(leaf, torch.Tensor):
        leaf = leaf.detach()
        yield Change.DTYPE, leaf.to(_pick([dtype for dtype in _DTYPES if dtype is not leaf.dtype], key, "dtype"))
        yield Change.SIZE, _resized(leaf, _pick(range(max(leaf.dim(), 1)), key, "size"))
        yield Change.RANK, leaf[0] if leaf.dim() and leaf.shape[0] and _pick((True, False), key, "rank") else leaf.unsqueeze(0)
        yield Change.TYPE, _pick(_OBJECTS, key, "type")
    elif type(leaf) is int:
        yield Change.NUMBER, _pick([number for number in _NUMBERS if number != leaf], key, "number")
        yield Change.TYPE, _pick(_OBJECTS, key, "type")
    elif type(leaf) in (float, bool):
        yield Change.TYPE, _pick(_OBJECTS, key, "type")


def _described(leaf: Any) -> str:
    return f"{leaf.dtype} {tuple(leaf.shape)}" if isinstance(leaf, torch.Tensor) else repr(leaf)


def _mutated(name: str, number: int, sample: Any) -> Iterator[Case]:
    arguments = (sample.input, sample.args, sample.kwargs)
    leaves, tree = pytree.tree_flatten(arguments)
    tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if any(leaves[place].layout is not torch.strided for place in tensors):
        return  # xla tensors are dense
    for place, leaf in enumerate(leaves):
        for change, wrong in _changes(leaf, (name, number, place)):
            replaced = pytree.tree_unflatten([*leaves[:place], wrong, *leaves[place + 1 :]], tree)
            yield Case(change, replaced, f"leaf {place}: {_described(leaf)} → {_described(wrong)}")
        if len(tensors) > 1 and isinstance(leaf, torch.Tensor) and leaf.dim():
            yield Case(Change.DEVICE, arguments, f"leaf {place} stays on the CPU", place)


def cases(entry: Any, samples: int) -> Iterator[Case]:
    """All error inputs of an entry of `op_db`, and all mutations of `samples` of its samples, chosen by hash."""
    if entry.error_inputs_func is not None:
        for number, wrong in enumerate(entry.error_inputs("cpu")):
            given = wrong.sample_input
            yield Case(Change.LISTED, (given.input, given.args, given.kwargs), f"error input {number}")
    dtypes = dtypes_of(entry)
    if not dtypes or entry.name in UNSAFE:
        return
    found = list(itertools.islice(entry.sample_inputs("cpu", dtypes[0]), 40))
    found.sort(key=lambda sample: zlib.crc32(repr((entry.name, sample.args, sample.kwargs)).encode()))
    for number, sample in enumerate(found[:samples]):
        yield from _mutated(entry.name, number, sample)
