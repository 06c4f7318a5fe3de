"""Write a value to a tensor: to its storage, or to the part of it that a view shows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from xla_core.engine.graph.pending_graph import Value
from xla_core.engine.runtime.pending_limit import relieve
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.layouts import as_aval
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.tensor import XLATensor, wrap

_warned: dict[Any, Any] = {}
"""Lines of users that were warned of a resized output, by which the filters of `warnings` leave out repetitions."""


def assign(tensor: XLATensor, value: Value) -> None:
    """Make `value` what `tensor` shows, for all that share its storage."""
    spec = tensor._view
    storage = tensor._storage
    if spec is None:
        storage.value = as_aval(value, storage.value.aval)
        return
    recorder = value.recorder
    with recorder.lock:
        pending_graph = recorder.pending_graph
        base = storage.value
        slot = pending_graph.write(pending_graph.adopt(base), spec, pending_graph.adopt(value))
        storage.value = pending_graph.define(recorder, slot, base.aval)
    if len(pending_graph.entries) > pending_graph.limit:
        relieve(recorder, (storage.value,))


def write(tensor: torch.Tensor, value: Value, anywhere: bool = False) -> None:
    """`assign` with torch's checks: no overlapping view, unless `anywhere`; an out= tensor of another shape is resized, with a warning."""
    target = ours(tensor)
    shape = tuple(tensor.shape)
    if shape != value.aval.shape:
        _resize(tensor, value)
        if 0 not in shape:
            _warn_of_resize(shape, value.aval.shape)
        return
    if target._view is not None and target._view.overlaps and not anywhere:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    assign(target, value)


def assign_from_cpu(tensor: XLATensor, source: torch.Tensor) -> None:
    """Overwrite what `tensor` shows with a CPU tensor's values (shape of `tensor`, or resized to `source`'s)."""
    value = upload(source.to(tensor.dtype), tensor._storage.value.recorder)
    if tuple(tensor.shape) == value.aval.shape:
        write(tensor, value)
    else:  # the CPU's kernel has warned
        _resize(tensor, value)


def _resize(tensor: torch.Tensor, value: Value) -> None:
    """Let `tensor` show `value`, of another shape."""
    if ours(tensor)._view is None:
        tensor.data = wrap(value)
    else:  # a larger window over the same storage: others see what is written, torch's own fftfreq among them
        torch.ops.aten.copy_.default(torch.ops.aten.resize_.default(tensor, value.aval.shape), wrap(value))


def _warn_of_resize(before: Sequence[int], shape: Sequence[int]) -> None:
    """Warn, as torch does, that an out= tensor with elements had another shape than the result, and was resized."""
    text = (
        f"An output with one or more elements was resized since it had shape {list(before)}, and the result has shape {list(shape)}. "
        "torch means to refuse this one day: where it is meant, empty the tensor before, with out.resize_(0)."
    )
    file, _, line = (user_line() or "<unknown>:0").rpartition(":")
    warnings.warn_explicit(text, UserWarning, file, int(line), registry=_warned)
