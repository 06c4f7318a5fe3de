"""From tensors to values: the value that a tensor shows now, copies of it on the CPU or on another device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core.base.dtypes import natural_dtype
from xla_core.engine.graph.pending_graph import KeptRef, Recorder, Value, buffer_value, computed_buffer
from xla_core.engine.runtime.client import mend
from xla_core.engine.runtime.sync import compute, read_many, read_number
from xla_core.engine.runtime.transfer import download, put
from xla_core.engine.tensor.tensor import XLATensor


def value_of(tensor: XLATensor) -> Value:
    """The value that `tensor` shows now: its storage's, or its view's, which may be recorded here."""
    storage_value = tensor._storage.value
    spec = tensor._view
    if spec is None:
        return storage_value
    seen = tensor._seen
    # Values are immutable: while the storage has the same one, its views show the same.
    if seen is not None and seen[0] is storage_value:
        return seen[1]
    recorder = storage_value.recorder
    try:
        with recorder.lock:
            pending_graph = recorder.pending_graph
            slot = pending_graph.read(pending_graph.adopt(storage_value), spec)
            reference = pending_graph.refs[slot]
            value = reference()
            if value is None:
                value = pending_graph.define(recorder, slot, spec.aval)
                value.buffer = pending_graph.input_data.get(slot)  # read before, by a tensor that is gone
                if type(reference) is KeptRef:
                    value.shared, pending_graph.refs[slot] = True, KeptRef(value)
    # Callers need not come through dispatch, which mends what it calls.
    except BaseException:
        mend()
        raise
    tensor._seen = (storage_value, value)
    return value


def cpu_copies(tensors: Sequence[XLATensor]) -> list[torch.Tensor]:
    """CPU copies of what the tensors show, from one execution for each device."""
    copies = [_cut_on_host(tensor) for tensor in tensors]
    downloaded = iter(read_many([value_of(tensor) for tensor, copy in zip(tensors, copies, strict=True) if copy is None]))
    return [next(downloaded) if copy is None else copy for copy in copies]


def number_of(tensor: XLATensor) -> Any:
    """The Python number in a tensor of one element. Raises what torch raises for a tensor of another size."""
    if tensor._view is None and tensor.numel() == 1:
        return read_number(tensor._storage.value)
    return cpu_copies((tensor,))[0].item()


# A view of a computed base of at most so many bytes is cut out on the host: `x[i].item()` need not compile for every i.
CUT_BYTES = 1 << 20


def _cut_on_host(tensor: XLATensor) -> torch.Tensor | None:
    """A copy of a view, cut out of a copy of its base; None where the device should run the read."""
    spec, base = tensor._view, tensor._storage.value
    if spec is None or base.buffer is None or base.aval.nbytes > CUT_BYTES:
        return None
    if tensor._seen is not None and tensor._seen[0] is base:
        return None  # it has a value of its own already
    if base.aval.physical != natural_dtype(base.aval.dtype):
        return None
    meta = spec.meta
    host_storage = download(base).untyped_storage()
    part = torch.empty(0, dtype=meta.dtype, device="cpu").set_(host_storage, meta.storage_offset(), tuple(meta.shape), meta.stride())
    part = part.clone()
    part = part.conj_physical() if meta.is_conj() else part
    return part.neg() if meta.is_neg() else part


def moved(value: Value, recorder: Recorder) -> Value:
    """`value` on another xla device: computed, then copied from device to device."""
    if value.recorder is recorder:
        return value
    compute([value])
    return buffer_value(recorder, value.aval, put(computed_buffer(value), recorder))
