"""Torch's own device meshes and DTensors over the processes of a job, each of which has one device.

Torch leaves meshes of device type xla without process groups, and gives `distribute_tensor` on them to SPMD mode. Here both are
left to that mode; with a process group, device xla is to torch like any other.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist

import torch_xla.runtime as xr
from xla_distributed._compat import handle_on_dtensors, make_special_only_if


def _left_to_spmd() -> bool:
    return bool(xr.is_spmd()) or not dist.is_initialized()


def _linear(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In the operations that torch splits it into on other devices, for which DTensors have rules."""
    return operation.decompose(*args, **kwargs)


def _linear_backward(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """In the operations that torch has for the gradients of those."""
    x, gradient, weight, wanted = args
    rows, gradients = x.reshape(-1, x.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    return (
        gradients.mm(weight).reshape(x.shape) if wanted[0] else None,
        gradients.t().mm(rows) if wanted[1] else None,
        gradients.sum(0) if wanted[2] else None,
    )


@cache
def register() -> None:
    """Let torch's device meshes have process groups where there are any, and DTensors serve what xla tensors keep whole."""
    make_special_only_if("xla", _left_to_spmd)
    handle_on_dtensors({torch.ops.aten.linear.default: _linear, torch.ops.aten.linear_backward.default: _linear_backward})


register()
