"""A copy of a state that later steps do not change, where its tensors are: devices copy at their own speed."""

from __future__ import annotations

import torch

from xla_serialization.core import abi
from xla_serialization.saving import Plan, unwrapped


def snapshot(planned: Plan) -> Plan:
    """The plan with copies of its tensors, of each on its device; they lie over devices as the tensors do."""
    tensors = {name: unwrapped(tensor).detach() for name, tensor in planned.tensors.items()}
    abi.computed(_on_devices(tensors))  # first, so that the program that copies is the same each time
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    abi.computed(_on_devices(copies))
    return Plan(planned.tree, copies)


def _on_devices(tensors: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in tensors.values() if tensor.device.type == "xla"]
