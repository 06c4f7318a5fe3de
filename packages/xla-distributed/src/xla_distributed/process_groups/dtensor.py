"""Torch's own device meshes and DTensors over the processes of a job, each of which has one device.

Torch leaves meshes of device type xla without process groups, and gives `distribute_tensor` on them to SPMD mode. Here both are
left to that mode; with a process group, device xla is to torch like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from xla_core.abi.job import is_spmd
from xla_distributed._compat import handle_on_dtensors, make_special_only_if, stage_by_copying


def _left_to_spmd() -> bool:
    return is_spmd() or not dist.is_initialized()


def _shaped(tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Reshape a tensor whose operations autograd does not see, to a view if possible."""
    return tensor if tuple(shape) == tensor.shape else torch.ops.aten.reshape.default.decompose(tensor, shape)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 2 else _shaped(tensor, (-1, tensor.shape[-1]))


def _linear(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """`linear` in the operations that torch splits it into on other devices: those DTensors have rules for."""

    def split(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result = _rows(x).mm(weight.t()) if bias is None else torch.addmm(bias, _rows(x), weight.t())
        return _shaped(result, (*x.shape[:-1], weight.shape[0]))

    return split(*args, **kwargs)


def _linear_backward(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradients of `linear`, in operations that DTensors have rules for."""
    x, gradient, weight, needed = args
    gradients = _rows(gradient)
    return (
        _shaped(gradients.mm(weight), x.shape) if needed[0] else None,
        gradients.t().mm(_rows(x)) if needed[1] else None,
        gradients.sum(0) if needed[2] else None,
    )


@cache
def register() -> None:
    """Let device meshes have process groups, DTensors split `linear`, which xla tensors keep whole, and checkpoints copy tensors."""
    make_special_only_if("xla", _left_to_spmd)
    handle_on_dtensors({torch.ops.aten.linear.default: _linear, torch.ops.aten.linear_backward.default: _linear_backward})
    stage_by_copying("xla")


register()
