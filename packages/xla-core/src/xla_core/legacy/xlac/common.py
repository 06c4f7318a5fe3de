"""Helpers of the other files: find recorders by device name, and xla tensors behind parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xla_core.api import devices
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.runtime import client
from xla_core.engine.tensor.live_buffers import live_tensors
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.tensor import XLATensor

Tensors = Sequence[torch.Tensor]


def recorder_named(device: str) -> Recorder:
    """The recorder of `xla:<n>` or of a real name; of the current device for an empty text. Raises RuntimeError for another text."""
    return client.recorder_at(devices.local_index(device)) if device else client.current_recorder()


def plain_tensors(tensors: Tensors) -> list[XLATensor]:
    """The xla tensors behind parameters and wrappers. Raises DeviceMismatchError for one that is not on xla."""
    return [unwrapped(tensor) for tensor in tensors]


def holders(first: Tensors = ()) -> dict[int, XLATensor]:
    """The live tensors that show a whole computed value, by the id of its buffer; tensors in `first` take precedence."""
    by_buffer: dict[int, XLATensor] = {}
    for tensor in (*plain_tensors(first), *live_tensors()):
        buffer = tensor._storage.value.buffer if tensor._view is None else None
        if buffer is not None:
            by_buffer.setdefault(id(buffer), tensor)
    return by_buffer
