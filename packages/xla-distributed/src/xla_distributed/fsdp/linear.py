"""Linear layers whose gradients are matrix products over flattened rows: `apply_xla_patch_to_nn_linear`."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn


class XLAPatchedLinear(torch.autograd.Function):
    """`torch.nn.functional.linear`, whose backward pass needs the weight as it is and no view of it. Under autocast as torch's."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """input: (…, n). weight: (m, n). bias: (m,). Gives (…, m)."""
        if torch.is_autocast_enabled(input.device.type):
            dtype = torch.get_autocast_dtype(input.device.type)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        ctx.save_for_backward(input, weight)
        return torch.nn.functional.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        """The gradients that are needed."""
        (gradient,) = grad_outputs
        input, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.size(-1))
        needed = ctx.needs_input_grad
        of_input = gradient @ weight if needed[0] else None
        of_weight = rows.t() @ input.reshape(-1, input.size(-1)) if needed[1] else None
        of_bias = rows.sum(0) if len(needed) > 2 and needed[2] else None
        return (of_input, of_weight, of_bias)[: len(needed)]


def patched_forward(module: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """`module(input)`, by XLAPatchedLinear."""
    result: torch.Tensor = XLAPatchedLinear.apply(input, module.weight, module.bias)  # type: ignore[no-untyped-call]
    return result


def apply_xla_patch_to_nn_linear(
    module: nn.Module, patched_function: Callable[[nn.Linear, torch.Tensor], torch.Tensor] = patched_forward
) -> nn.Module:
    """Let every `nn.Linear` in `module`, itself included, compute `patched_function(layer, input)`, in place. Returns `module`."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.forward = MethodType(patched_function, layer)  # type: ignore[method-assign]
    return module
