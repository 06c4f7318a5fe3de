"""Keep the sharding that was set for data: when it is written to, it is resharded as the step runs (SPMD)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

import jax
from jax.sharding import NamedSharding, PartitionSpec

from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.pending_graph import BLANK, Recorder, Value, buffer_value
from xla_core.engine.placement.device_order import in_order_of, relabelled
from xla_core.engine.placement.planned import PlannedBuffer
from xla_core.engine.placement.sharding import Sharding, padded, sharding_constraint, stored_shape, unpadded

_KEY = "sharding"


class AnnotatedStorage(Protocol):
    """A storage: something whose current value changes."""

    value: Value
    annotations: dict[Any, Any] | None


@dataclass(slots=True, eq=False)
class _RequestedSharding:
    """sharding: as requested. resharded: a weak reference to the value that is known to have it."""

    sharding: Sharding
    resharded: Callable[[], Value | None]


# In order of annotation, which is the same in every run of a program.
_holders: weakref.WeakKeyDictionary[AnnotatedStorage, None] = weakref.WeakKeyDictionary()


def any_sharded() -> bool:
    """Whether a sharding was set for any data."""
    return bool(_holders)


def requested_sharding(holder: AnnotatedStorage, view: Any = None) -> Sharding | None:
    """The sharding that was requested for data or for a view of it, if any."""
    if holder.annotations is None:
        return None
    if view is not None:
        of_view: Sharding | None = holder.annotations.get(_key_of(view))
        return of_view
    request: _RequestedSharding | None = holder.annotations.get(_KEY)
    return None if request is None else request.sharding


def _key_of(view: Any) -> Any:
    # Views of the same elements share a spec, and so the sharding.
    return (_KEY, view)


def copy_sharding(source: AnnotatedStorage, holder: AnnotatedStorage) -> None:
    """Set the sharding of `source` for data of the same shape that was made like it."""
    sharding = requested_sharding(source)
    if sharding is not None and source.value.aval.shape == holder.value.aval.shape:
        _request(holder, sharding)


def set_sharding(holder: AnnotatedStorage, sharding: Sharding | None) -> None:
    """Set the sharding of data (None: no particular one). A buffer is resharded now, a pending value when it is computed."""
    if sharding is None:
        if holder.annotations is not None:
            holder.annotations.pop(_KEY, None)
        _holders.pop(holder, None)
        return
    _request(holder, sharding)
    reshard_one(holder)


def set_sharding_of_view(holder: AnnotatedStorage, view: Any, sharding: Sharding | None) -> None:
    """Set the sharding of a view of data (None: no particular one), and constrain its present value."""
    if sharding is None:
        if holder.annotations is not None:
            holder.annotations.pop(_key_of(view), None)
        return
    _annotations(holder)[_key_of(view)] = sharding
    if not view.aval.nbytes:
        return
    base = holder.value
    with base.recorder.lock:
        pending_graph = base.recorder.pending_graph
        slot = pending_graph.adopt(base)
        constraint = sharding_constraint([view.aval], [sharding])
        # Replaces the plain read: later reads of this view get the constrained value.
        pending_graph.reads[slot, view] = pending_graph.append(constraint, [pending_graph.read(slot, view)])


def keep_sharding(before: AnnotatedStorage, before_view: Any, holder: AnnotatedStorage, view: Any) -> None:
    """Give the sharding that a tensor had to the data that it shows now, if that has the same shape and no sharding of its own."""
    sharding = requested_sharding(before, before_view)
    shape = (before.value if before_view is None else before_view).aval.shape
    if sharding is None or shape != (holder.value if view is None else view).aval.shape or requested_sharding(holder, view) is not None:
        return
    if view is None:
        _request(holder, sharding)
    else:
        set_sharding_of_view(holder, view, sharding)


def reshard_one(holder: AnnotatedStorage) -> None:
    """Reshard data to the requested sharding, if any."""
    if requested_sharding(holder) is not None:
        recorder = holder.value.recorder
        with recorder.lock:
            _reshard(recorder, [holder])


def _request(holder: AnnotatedStorage, sharding: Sharding) -> None:
    _annotations(holder)[_KEY] = _RequestedSharding(sharding, _not_yet)
    _holders[holder] = None


def _annotations(holder: AnnotatedStorage) -> dict[Any, Any]:
    if holder.annotations is None:
        holder.annotations = {}
    return holder.annotations


def _not_yet() -> None:
    return None


def reshard_all(recorder: Recorder) -> None:
    """Reshard all data of a device with a requested sharding: record it for pending values, move buffers. Call under the device's lock."""
    _reshard(recorder, [holder for holder in _holders if holder.value.recorder is recorder])


def _reshard(recorder: Recorder, holders: list[AnnotatedStorage]) -> None:
    pending_graph = recorder.pending_graph
    pending: list[tuple[AnnotatedStorage, Sharding]] = []
    for holder in holders:
        request: _RequestedSharding = (holder.annotations or {})[_KEY]
        value = holder.value
        # For data that was not written to since, a step costs no more than this test. Blank and empty values have nothing to move.
        if request.resharded() is value or value.slot == BLANK or not value.aval.nbytes:
            continue
        sharding = request.sharding
        if value.buffer is not None:
            holder.value = _resharded(value, sharding)
            request.resharded = weakref.ref(holder.value)  # weak: a value that is replaced must be free to go, with its buffer
        elif value.pending_graph is pending_graph:
            pending.append((holder, sharding))
    if not pending:
        return
    avals = [holder.value.aval for holder, _ in pending]
    slots = [holder.value.slot for holder, _ in pending]
    first = pending_graph.append(sharding_constraint(avals, [sharding for _, sharding in pending]), slots)
    for slot, (holder, _) in enumerate(pending, first):
        holder.value = pending_graph.define(recorder, slot, holder.value.aval)
        (holder.annotations or {})[_KEY].resharded = weakref.ref(holder.value)


def _resharded(value: Value, sharding: Sharding) -> Value:
    """A computed value with this sharding; `value` itself if it has the sharding already."""
    if value.buffer is None or value.buffer.sharding == sharding.named:
        return value
    return buffer_value(value.recorder, value.aval, reshard(value.buffer, sharding.named, value.aval))


def reshard(buffer: jax.Array, sharding: Any, aval: Aval) -> jax.Array:
    """A buffer of the same values with another sharding. In a job, all processes must make the same call."""
    shape = buffer.shape if aval.manual else aval.shape
    if isinstance(buffer, PlannedBuffer):
        return buffer.resharded(sharding, stored_shape(shape, sharding))
    with jax.enable_x64(True):  # or 64-bit elements are cut to 32
        # Where other processes have some of the shards, only a program can move them, and only a program pads.
        if buffer.is_fully_addressable and buffer.shape == shape == stored_shape(shape, sharding):
            return cast(jax.Array, jax.device_put(buffer, sharding))
        here = NamedSharding(sharding.mesh, PartitionSpec())
        there = in_order_of(buffer.sharding, here)
        if there is not buffer.sharding:  # a program runs over one order of devices
            own: Any = buffer.sharding
            buffer = relabelled(_resharder(NamedSharding(own.mesh, PartitionSpec()), shape)(buffer), here)
        return cast(jax.Array, _resharder(sharding, shape)(buffer))


# Cached: jax.jit finds compiled code by the function object.
@cache
def _resharder(sharding: jax.sharding.Sharding, shape: tuple[int, ...]) -> Any:
    return jax.jit(lambda array: padded(unpadded(array, shape), sharding), out_shardings=sharding)


def whole(buffer: jax.Array, aval: Aval, default: jax.sharding.Sharding) -> jax.Array:
    """The buffer of a value without padding: replicated, if `buffer` has padding."""
    return buffer if aval.manual or buffer.shape == aval.shape else reshard(buffer, default, aval)


def buffer_sharding(holder: AnnotatedStorage) -> NamedSharding | None:
    """The jax sharding that was requested for the holder's data; None if none was."""
    sharding = requested_sharding(holder)
    return None if sharding is None else sharding.named
