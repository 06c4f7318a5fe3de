"""Find the buffers that are on the devices now, and the tensors that keep them there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import jax
import torch

from xla_core.engine.graph.pending_graph import Value
from xla_core.engine.placement.planned import PlannedBuffer
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.tensor import XLATensor


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """A buffer on a device, and the tensors that show it or a view of it; none where something else keeps the value."""

    device: str
    array: jax.Array
    tensors: tuple[torch.Tensor, ...]


def live_tensors() -> list[XLATensor]:
    """All live tensors on xla devices; for a parameter, the xla tensor behind it.

    Walks the objects of the garbage collector: milliseconds in a large program.
    """
    return [tensor for tensor in gc.get_objects() if type(tensor) is XLATensor]


def live_buffers() -> list[LiveBuffer]:
    """The buffers of all live computed values, the largest first. As slow as `live_tensors`."""
    kinds = {Value, *with_subclasses(torch.Tensor)}
    things = [thing for thing in gc.get_objects() if type(thing) in kinds]  # of half a million objects: no more work for each
    holders: dict[int, list[torch.Tensor]] = {}
    hidden: set[int] = set()  # behind parameters, which are listed instead
    for thing in things:
        if isinstance(thing, torch.Tensor):
            behind = tensor_behind(thing)
            if behind is not None:
                holders.setdefault(id(behind._storage.value), []).append(thing)
                if behind is not thing:
                    hidden.add(id(behind))
    buffers: dict[int, LiveBuffer] = {}
    for value in things:
        buffer = getattr(value, "buffer", None) if type(value) is Value else None  # another thread may be making it
        if isinstance(buffer, (jax.Array, PlannedBuffer)) and not buffer.is_deleted():  # no placeholder
            tensors = tuple(tensor for tensor in holders.get(id(value), ()) if id(tensor) not in hidden)
            before = buffers.get(id(buffer))
            showing = tensors if before is None else before.tensors + tensors
            buffers[id(buffer)] = LiveBuffer(str(value.recorder.device), cast(jax.Array, buffer), showing)
    return sorted(buffers.values(), key=lambda buffer: -buffer.array.nbytes)


def with_subclasses(cls: type) -> Iterator[type]:
    """A class and all its subclasses."""
    yield cls
    subclasses: list[type] = type.__subclasses__(cls)
    for below in subclasses:
        yield from with_subclasses(below)
