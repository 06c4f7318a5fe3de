"""Zeros written over a whole tensor, as `zero_grad(set_to_none=False)` does: nothing is recorded until they are used."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from xla_core.engine.graph.pending_graph import blank_value
from xla_core.engine.tensor.record import count_writes
from xla_core.engine.tensor.recorded import recorded
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor

aten = torch.ops.aten


def zero_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`tensor.zero_()`."""
    return args[0] if _emptied(args[0]) else recorded(aten.zero_.default)(args, kwargs)


def foreach_zero_(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`torch._foreach_zero_`."""
    emptied = [tensor for tensor in args[0] if _emptied(tensor)]
    if len(emptied) < len(args[0]):
        recorded(aten._foreach_zero_.default)((list(args[0]),), kwargs)
    elif emptied:
        count_writes(emptied)


def _emptied(tensor: Any) -> bool:
    """Give a tensor that shows all of its storage zeros, without an operation. Returns False, and does nothing, for others."""
    if type(tensor) is not XLATensor or tensor._view is not None:
        return False
    if tensor._storage.value.aval.manual:
        return False
    leave_zeros(tensor._storage)
    return True


def leave_zeros(storage: Storage) -> None:
    """Let a storage have zeros, which are made when they are used."""
    recorder = storage.value.recorder
    value = blank_value(recorder, storage.value.aval)
    value.zeroed = weakref.ref(storage), recorder.steps
    storage.value = value


HANDLERS: dict[str, Handler] = {"zero_": zero_, "_foreach_zero_": foreach_zero_}
