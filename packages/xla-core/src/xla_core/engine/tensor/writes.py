"""Write a value to a tensor: to its storage, or to the part of it that a view shows."""

from __future__ import annotations

import torch

from xla_core.engine.graph.pending_graph import Value
from xla_core.engine.runtime.pending_limit import relieve
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.layouts import as_aval
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.tensor import XLATensor, wrap


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
    """`assign` with torch's checks: no overlapping view, unless `anywhere`; an out= tensor of another shape is resized."""
    target = ours(tensor)
    if tuple(tensor.shape) != value.aval.shape:
        if target._view is None:
            tensor.data = wrap(value)
        else:  # a larger window over the same storage: others see what is written, torch's own fftfreq among them
            torch.ops.aten.copy_.default(torch.ops.aten.resize_.default(tensor, value.aval.shape), wrap(value))
        return
    if target._view is not None and target._view.overlaps and not anywhere:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    assign(target, value)


def assign_from_cpu(tensor: XLATensor, source: torch.Tensor) -> None:
    """Overwrite what `tensor` shows with a CPU tensor's values (shape of `tensor`, or resized to `source`'s)."""
    write(tensor, upload(source.to(tensor.dtype), tensor._storage.value.recorder))
