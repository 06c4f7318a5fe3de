"""`torch._foreach_addcmul` and `_foreach_addcdiv` with a vector of factors, which torch takes from the CPU and xla from the device, too."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.engine.tensor.recorded import recorded
from xla_core.engine.tensor.schema import Handler


def _with_vector(packet: Any, self: list[Any], tensor1: list[Any], tensor2: list[Any], scalars: torch.Tensor) -> Any:
    if not scalars.is_contiguous():
        raise RuntimeError("Expected scalars to be contiguous.")
    if scalars.dim() != 1:
        raise RuntimeError(f"Expected packed scalar Tensor to be of dimension 1. Got {scalars.dim()} instead.")
    if len(scalars) != len(self):
        raise RuntimeError(f"Expected length of scalars to match input of length {len(self)} but got {len(scalars)} instead.")
    if scalars.is_cpu:
        return packet.ScalarList(self, tensor1, tensor2, scalars.tolist())
    return recorded(packet.Tensor)((self, tensor1, tensor2, scalars), {})


def _handler(name: str) -> Handler:
    packet = getattr(torch.ops.aten, name)
    return lambda args, kwargs: _with_vector(packet, *args, **kwargs)


HANDLERS: dict[str, Handler] = {
    f"{name}.Tensor": _handler(name) for base in ("addcdiv", "addcmul") for name in (f"_foreach_{base}", f"_foreach_{base}_")
}
