"""A copy of a state that later steps do not change, where its tensors are: devices copy at their own speed."""

from __future__ import annotations

import dataclasses

import torch

from xla_serialization.checkpoint.dtensors import local_part
from xla_serialization.checkpoint.state import FlatState, unwrapped
from xla_serialization.core import tensors as tensors_abi


def snapshot(state: FlatState) -> FlatState:
    """The state with copies of its tensors, each on the devices and with the sharding of the tensor."""
    tensors = {name: unwrapped(tensor).detach() for name, tensor in state.tensors.items()}
    tensors_abi.materialize(_on_devices(tensors))  # first, so that the program that copies is the same each time
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors_abi.materialize(_on_devices(copies))
    return dataclasses.replace(state, tensors=copies)


def _on_devices(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [local_part(tensor) for tensor in tensors.values() if tensor.device.type == "xla"]
