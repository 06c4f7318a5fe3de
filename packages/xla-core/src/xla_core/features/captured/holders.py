"""Who holds values and gradients around a captured call, and other buffers for those that nobody else has."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import islice
from operator import attrgetter

import jax
import torch

from xla_core.base.private_torch import count_holders
from xla_core.engine.graph.pending_graph import Value, buffers_made
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tracing.numbers import picker

_value = attrgetter("value")
_shared = attrgetter("shared")
_grad = attrgetter("grad")
_storage = attrgetter("_storage")


def _references_of_one() -> int:
    """What `launch` counts for a value that only its storage holds."""
    storages = [Storage(), Storage()]
    for storage in storages:
        storage.value = Value()
    values = list(map(_value, storages))
    given = picker([0, 1])(values)
    return max(map(sys.getrefcount, given), default=0)


_ONE_HOLDER = _references_of_one()


def holders(grads: Sequence[XLATensor]) -> tuple[int, int, int, int]:
    """How many hold one of these gradients at most: in C++, in Python, its data, and the value of that."""
    storages = list(map(_storage, grads))
    values = list(map(_value, storages))
    return (
        max(map(count_holders, grads), default=0),
        max(map(sys.getrefcount, grads), default=0),
        max(map(sys.getrefcount, storages), default=0),
        max(map(sys.getrefcount, values), default=0),
    )


@cache
def holders_of_one() -> tuple[int, int, int, int]:
    """What `holders` gives for gradients that nobody holds but their tensors."""
    leaves = []
    for _ in range(2):
        with torch.no_grad():
            leaf = torch.zeros(1, device="xla").requires_grad_()
            leaf.grad = torch.zeros(1, device="xla")
        leaves.append(leaf)
    torch_grads = list(map(_grad, leaves))
    return holders(picker([0, 1])(torch_grads))


class Writes:
    """Storages, by number, that take results: `pairs` of both numbers."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        self.pairs = pairs
        self.pick_values = picker([number for number, _ in pairs])
        self.pick_results = picker([result for _, result in pairs])


def nobody_else_has(values: Sequence[Value]) -> bool:
    """Whether each of these values, which two sequences have, is else that of one storage only, and its buffer nobody's outside."""
    return max(map(sys.getrefcount, values), default=0) <= _ONE_HOLDER and not any(map(_shared, values))


def renew(values: Sequence[Value], buffers: Sequence[jax.Array]) -> None:
    """Give values other buffers."""
    for value, buffer in zip(values, buffers, strict=True):
        value.buffer = buffer
    deque(islice(buffers_made, len(values)), maxlen=0)  # counts them
