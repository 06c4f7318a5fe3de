"""Values in other strides: torch shows strides, XLA chooses its layouts, so that the elements stay as they are."""

from __future__ import annotations

import torch

from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.pending_graph import Value
from xla_core.engine.tensor.views import relaid


def with_strides(value: Value, strides: tuple[int, ...] | None) -> Value:
    """A value of the same elements that shows other strides; None: row-major."""
    aval = value.aval
    return as_aval(value, aval_of(aval.shape, aval.dtype, aval.manual, strides))


def as_aval(value: Value, aval: Aval) -> Value:
    """`value`, if it has this aval, else one of the same elements in its strides. aval: of the same shape and dtype."""
    if value.aval is aval:
        return value
    if value.aval.manual != aval.manual:
        return with_strides(value, aval.strides)
    recorder = value.recorder
    with recorder.lock:
        pending_graph = recorder.pending_graph
        return pending_graph.define(recorder, pending_graph.append(relaid(value.aval, aval), [pending_graph.adopt(value)]), aval)


def in_format(value: Value, memory_format: torch.memory_format | None) -> Value:
    """A copy's value in a memory format. Raises torch's error for one that does not fit the dimensions."""
    if memory_format is None or memory_format is torch.preserve_format:
        return value  # its strides are those of a copy already
    if memory_format is torch.contiguous_format:
        return value if value.aval.strides is None else with_strides(value, None)
    return with_strides(value, tuple(torch.empty(value.aval.shape, memory_format=memory_format, device="meta").stride()))
