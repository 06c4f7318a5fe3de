"""Copy a state on its devices, so that later steps do not change the copy."""

from __future__ import annotations

import dataclasses

import torch

from xla_serialization.checkpoint.dtensors import local_part
from xla_serialization.checkpoint.state import FlatState, unwrapped
from xla_serialization.core import tensors as tensors_abi


def snapshot(state: FlatState) -> FlatState:
    """Copy a state's tensors, each on the same devices and with the same sharding."""
    tensors = {name: unwrapped(tensor).detach() for name, tensor in state.tensors.items()}
    tensors_abi.materialize(_on_devices(tensors))  # first, so that the program that copies is the same each time
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    tensors_abi.materialize(_on_devices(copies))
    return dataclasses.replace(state, tensors=copies)


def _on_devices(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [local_part(tensor) for tensor in tensors.values() if tensor.device.type == "xla"]
