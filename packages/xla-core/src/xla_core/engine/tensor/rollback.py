"""Put tensors and optimizers back to what they were: what a block that runs nothing has written is no data."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import jax
import torch
from torch.optim.optimizer import Optimizer

from xla_core.base.errors import ExecutionError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.pending_graph import BLANK, Recorder, Value, blank_value, buffer_value, lose
from xla_core.engine.placement.planned import PlannedBuffer
from xla_core.engine.tensor.live_buffers import with_subclasses
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import view_of


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a value was. buffer: None for a blank one, with its `zeroed` if it has that."""

    aval: Aval
    recorder: Recorder
    buffer: jax.Array | None
    shared: bool
    zeroed: Any

    def again(self) -> Value:
        """A value like it."""
        if self.buffer is not None:
            return buffer_value(self.recorder, self.aval, self.buffer, self.shared)
        value = blank_value(self.recorder, self.aval)
        if self.zeroed is not None:
            value.zeroed = self.zeroed
        return value


@dataclass(frozen=True, slots=True)
class _Shown:
    """The storage that a tensor shows, the view of it, and the tensor's gradient."""

    tensor: weakref.ref[torch.Tensor]
    storage: Storage
    view: Any
    gradient: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _State:
    """What an optimizer keeps: the dicts of its parameters, with their items. counts: its tensors on the CPU, with copies."""

    optimizer: weakref.ref[Optimizer]
    items: dict[Any, tuple[Any, Any]]
    counts: list[tuple[torch.Tensor, torch.Tensor]]


class Rollback:
    """The data of all tensors on devices, their gradients, and what all optimizers keep, as they are now. Nothing may be pending.

    Holds buffers, and none of the values: whether somebody else holds a value decides whether a step takes over its memory.
    """

    def __init__(self) -> None:
        classes = {Storage, *with_subclasses(torch.Tensor), *with_subclasses(Optimizer)}
        things = [thing for thing in gc.get_objects() if type(thing) in classes]
        kept: dict[int, _Kept | None] = {}
        storages = [thing for thing in things if type(thing) is Storage]
        self._storages = [(weakref.ref(storage), kept.setdefault(id(storage.value), _kept(storage.value))) for storage in storages]
        self._shown = [shown for tensor in things if isinstance(tensor, torch.Tensor) and (shown := _shown(tensor)) is not None]
        self._states = [_state(optimizer) for optimizer in things if isinstance(optimizer, Optimizer)]

    def undo(self) -> None:
        """Put back what still lives."""
        values: dict[int, Value] = {}  # storages that had one value share one again
        for reference, kept in self._storages:
            storage = reference()
            if storage is not None and kept is not None:
                value = values.get(id(kept))
                storage.value = values[id(kept)] = kept.again() if value is None else value
        for shown in self._shown:
            _show_again(shown)
        for state in self._states:
            _put_back(state)


def lose_planned() -> None:
    """Let whoever uses a value without data get an ExecutionError: it was made where nothing ran, and now programs run."""
    never_run = ExecutionError("it was made within torch_xla.compile_only(), where nothing runs. Make it behind that block")
    for value in gc.get_objects():
        if type(value) is Value and hasattr(value, "buffer") and _has_not_run(value):
            value.buffer = None
            lose(value, never_run)


def _has_not_run(value: Value) -> bool:
    return value.pending_graph is not None if value.buffer is None else isinstance(value.buffer, PlannedBuffer)


def _kept(value: Value) -> _Kept | None:
    if value.buffer is None and value.slot != BLANK:
        return None  # it was lost before
    return _Kept(value.aval, value.recorder, value.buffer, value.shared, getattr(value, "zeroed", None))


def _shown(tensor: torch.Tensor) -> _Shown | None:
    behind = tensor_behind(tensor)
    if behind is None:
        return None
    return _Shown(weakref.ref(tensor), behind._storage, behind._view, tensor.grad if tensor.is_leaf else None)


def _show_again(shown: _Shown) -> None:
    tensor = shown.tensor()
    if tensor is None:
        return
    behind = tensor_behind(tensor)
    if behind is None or behind._storage is not shown.storage:
        tensor.data = view_of(shown.storage, shown.view)
    if tensor.is_leaf and tensor.grad is not shown.gradient:
        tensor.grad = shown.gradient


def _state(optimizer: Optimizer) -> _State:
    items = {key: (value, dict(value) if isinstance(value, dict) else value) for key, value in optimizer.state.items()}
    counts = [
        (tensor, tensor.clone())
        for _, values in items.values()
        if isinstance(values, dict)
        for tensor in values.values()
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu"
    ]
    return _State(weakref.ref(optimizer), items, counts)


def _put_back(state: _State) -> None:
    optimizer = state.optimizer()
    if optimizer is None:
        return
    optimizer.state.clear()
    for key, (value, items) in state.items.items():
        if isinstance(value, dict):
            value.clear()
            value.update(items)
        optimizer.state[key] = value
    for tensor, copy in state.counts:
        tensor.copy_(copy)
