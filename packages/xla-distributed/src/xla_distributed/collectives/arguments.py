"""Arguments and results of collectives among several replicas, beyond what `xla_core.abi` checks for one: devices, outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core.abi.collectives import check_tensors


def check_on_device(name: str, tensors: Sequence[Any]) -> None:
    """Raise TypeError for what is no tensor, RuntimeError for a tensor that is not on an xla device."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            check_tensors(name, tensors)
        if tensor.device.type != "xla":
            raise RuntimeError(f"{name}: Input tensor is not an XLA tensor: {tensor.type()}")


def dimension(tensor: torch.Tensor, dim: int) -> int:
    """The dimension, counted from the first. Raises what torch raises for one that is not there."""
    tensor.size(dim)
    return dim % tensor.dim()


def write(targets: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Copy results to tensors in place, as one operation: a hundred small ones would cost more than their collective."""
    with torch.no_grad():
        torch._foreach_copy_(list(targets), list(results))


def returned(value: Any, results: list[torch.Tensor], output: Any) -> Any:
    """The return value of a collective for `value`: the results, or `output` filled with them if it is there; a list for a list."""
    if isinstance(value, torch.Tensor):
        if output is None:
            return results[0]
        with torch.no_grad():
            return output.copy_(results[0])
    if output is None:
        return results
    write(output, results)
    return output
