"""A copy of a state that later steps do not change, where its tensors are: devices copy at their own speed."""

from __future__ import annotations

import torch

from xla_serialization.checkpoint.saving import FlatState, unwrapped
from xla_serialization.core import tensors as tensors_abi


def snapshot(state: FlatState) -> FlatState:
    """The state with copies of its tensors, each on the devices and with the sharding of the tensor."""
    tensors = {name: unwrapped(tensor).detach() for name, tensor in state.tensors.items()}
    tensors_abi.materialize(_on_devices(tensors))  # first, so that the program that copies is the same each time
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors_abi.materialize(_on_devices(copies))
    return FlatState(state.tree, copies)


def _on_devices(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors.values() if tensor.device.type == "xla"]
