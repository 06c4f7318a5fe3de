"""Data with a layout keeps it: whatever is written to it, it lies as told again when the step runs (SPMD)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding, Sharding

from xla_core.ir.aval import Aval
from xla_core.ir.layout import Layout, lay_out
from xla_core.ir.tape import BLANK, Recorder, Value, buffer_value

_KEY = "layout"


class Holder(Protocol):
    """A storage: something whose current value changes."""

    value: Value
    annotations: dict[Any, Any] | None


@dataclass(slots=True, eq=False)
class _Kept:
    """layout: as asked for. settled: the value that is known to lie so."""

    layout: Layout
    settled: Callable[[], Value | None]


# In order of annotation, which is the same in every run of a program.
_holders: weakref.WeakKeyDictionary[Holder, None] = weakref.WeakKeyDictionary()


def any_kept() -> bool:
    """Whether any data has a layout."""
    return bool(_holders)


def layout_of(holder: Holder) -> Layout | None:
    """The layout that was asked for."""
    kept: _Kept | None = None if holder.annotations is None else holder.annotations.get(_KEY)
    return None if kept is None else kept.layout


def follow(source: Holder, holder: Holder) -> None:
    """Give data made in the image of other data the same layout."""
    layout = layout_of(source)
    if layout is not None and source.value.aval.shape == holder.value.aval.shape:
        _keep(holder, layout)


def set_layout(holder: Holder, layout: Layout | None) -> None:
    """Let data lie so from now on (None: however it comes). What is on the device moves now, a pending value when it is computed."""
    if layout is None:
        if holder.annotations is not None:
            holder.annotations.pop(_KEY, None)
        _holders.pop(holder, None)
        return
    _keep(holder, layout)
    settle_one(holder)


def settle_one(holder: Holder) -> None:
    """Make data lie as told, if it was."""
    if layout_of(holder) is not None:
        recorder = holder.value.recorder
        with recorder.lock:
            _settle(recorder, [holder])


def _keep(holder: Holder, layout: Layout) -> None:
    if holder.annotations is None:
        holder.annotations = {}
    holder.annotations[_KEY] = _Kept(layout, _unsettled)
    _holders[holder] = None


def _unsettled() -> None:
    return None


def settle(recorder: Recorder) -> None:
    """Make all data of a device with a layout lie so: record it for what is pending, move what is not. Call under its lock."""
    _settle(recorder, [holder for holder in _holders if holder.value.recorder is recorder])


def _settle(recorder: Recorder, holders: list[Holder]) -> None:
    tape = recorder.tape
    pending: list[tuple[Holder, Layout]] = []
    for holder in holders:
        kept: _Kept = (holder.annotations or {})[_KEY]
        value = holder.value
        if kept.settled() is value or value.slot == BLANK:
            continue
        layout = kept.layout.stored(value.aval.shape)
        if value.buffer is not None:
            holder.value = moved(value, layout)
            kept.settled = weakref.ref(holder.value)
        elif value.tape is tape:
            pending.append((holder, layout))
    if not pending:
        return
    avals = [holder.value.aval for holder, _ in pending]
    slots = [holder.value.slot for holder, _ in pending]
    first = tape.append(lay_out(avals, [layout for _, layout in pending]), slots)
    for slot, (holder, _) in enumerate(pending, first):
        holder.value = tape.define(recorder, slot, holder.value.aval)
        (holder.annotations or {})[_KEY].settled = weakref.ref(holder.value)


def moved(value: Value, layout: Layout) -> Value:
    """A computed value, lying so; the same one if it does already."""
    if value.buffer is None or value.buffer.sharding == layout.sharding:
        return value
    return buffer_value(value.recorder, value.aval, relaid(value.buffer, layout.sharding))


def relaid(buffer: jax.Array, sharding: Sharding) -> jax.Array:
    """The same array, lying so. Among several processes all must call this alike."""
    with jax.enable_x64(True):  # or 64-bit elements are cut to 32
        moved: jax.Array = jax.device_put(buffer, sharding) if buffer.is_fully_addressable else _mover(sharding)(buffer)
        return moved


@cache
def _mover(sharding: Sharding) -> Any:
    return jax.jit(lambda array: array, out_shardings=sharding)


def form_of(holder: Holder, aval: Aval) -> NamedSharding | None:
    """The sharding of a buffer with the holder's data; None where none was asked for."""
    layout = layout_of(holder)
    return None if layout is None else layout.stored(aval.shape).sharding
