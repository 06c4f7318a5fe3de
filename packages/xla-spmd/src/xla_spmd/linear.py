"""Linear layers that never flatten leading dimensions, and a barrier between the backward passes of modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import torch_xla.core.xla_model as xm
from xla_core.abi.declarations import budget
from xla_spmd import operators as operators  # defines them
from xla_spmd.tensor import unwrap_sharded_tensor


class XLAPatchedLinear(torch.autograd.Function):
    """`linear` as an einsum: leading dimensions, which may be sharded, are never merged. Under autocast as torch's `linear`."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """input: (…, n). weight: (m, n). bias: (m,). Gives (…, m)."""
        if torch.is_autocast_enabled(input.device.type):
            dtype = torch.get_autocast_dtype(input.device.type)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        ctx.save_for_backward(input, weight)
        product: torch.Tensor = torch.ops.xla.einsum_linear_forward(input, weight, bias)
        return product

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        """The gradients that are needed."""
        needed = list(ctx.needs_input_grad)
        if not any(needed):
            return None, None, None
        gradients = iter(torch.ops.xla.einsum_linear_backward(grad_output, *ctx.saved_tensors, needed + [False] * (3 - len(needed))))
        return tuple([next(gradients) if is_needed else None for is_needed in needed])


def linear_gradients(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    needs_input_grad_input: bool,
    needs_input_grad_weight: bool,
    needs_input_grad_bias: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The gradients of input (…, n), weight (m, n) and bias (m,) from the result's (…, m); None where it is not needed."""
    needed = [needs_input_grad_input, needs_input_grad_weight, needs_input_grad_bias and bias is not None]
    gradients = iter(torch.ops.xla.einsum_linear_backward(grad_output, input, weight, needed) if any(needed) else ())
    of_input, of_weight, of_bias = [next(gradients) if is_needed else None for is_needed in needed]
    return of_input, of_weight, of_bias


def linear_without_values(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """A tensor like the result of `linear` of (…, n) and (m, n), without its values."""
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def linear_gradients_without_values(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    needs_input_grad_input: bool,
    needs_input_grad_weight: bool,
    needs_input_grad_bias: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Tensors like what `linear_gradients` gives, without their values."""
    return (
        torch.empty_like(input) if needs_input_grad_input else None,
        torch.empty_like(weight) if needs_input_grad_weight else None,
        torch.empty_like(bias) if needs_input_grad_bias and bias is not None else None,
    )


@budget()
def xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """`m(input)`, by XLAPatchedLinear."""
    result: torch.Tensor = XLAPatchedLinear.apply(input, m.weight, m.bias)  # type: ignore[no-untyped-call]
    return result


class EinsumLinear(nn.Linear):
    """`torch.nn.Linear` whose leading dimensions are never merged."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(…, in_features) → (…, out_features)."""
        return xla_patched_nn_linear_forward(self, input)


@budget()
def apply_xla_patch_to_nn_linear(module: nn.Module) -> nn.Module:
    """Make every `nn.Linear` in `module`, itself included, an EinsumLinear, in place: parameters and hooks stay. Returns `module`."""
    for layer in module.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = EinsumLinear
    return module


@budget()
def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Keep the compiler from moving computation out of or into the backward pass of `m`, or merging it with others'."""

    def separate(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        gradients = [parameter.grad for parameter in module.parameters()]
        inputs = grad_input if isinstance(grad_input, tuple) else (grad_input,)
        tensors = [value for value in (*gradients, *inputs) if isinstance(value, torch.Tensor)]
        xm.optimization_barrier_([unwrap_sharded_tensor(tensor) for tensor in tensors])

    m.register_full_backward_hook(separate)
