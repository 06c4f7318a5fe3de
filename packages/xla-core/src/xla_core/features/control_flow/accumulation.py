"""`gradient_accumulation`: runs the forward and backward passes of several small batches as one loop on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.engine.tracing.bodies import check_on_device
from xla_core.features.control_flow.scan import scan


def gradient_accumulation(
    train_step: Callable[..., Any], iterable_tensors: Sequence[torch.Tensor], model: torch.nn.Module, *carried_tensors: torch.Tensor
) -> Any:
    """The mean loss of `train_step` over slices of `iterable_tensors`. Adds its gradients to those of the model's parameters.

    train_step: called with one slice of each iterable tensor and the carried tensors; returns the slice's loss, a scalar, followed by the
    new values of the carried tensors, if any. It does not call backward(). iterable_tensors: on the device, sliced along their first
    dimension. The function is recorded once. Returns the loss, followed by carried tensors, if any.

    Raises ValueError if first dimensions differ or a loss is not a scalar, UnsupportedOperationError for a model that writes to a buffer,
    and what `scan` raises.
    """
    if isinstance(iterable_tensors, torch.Tensor):
        raise TypeError("gradient_accumulation takes a tuple of tensors, got a Tensor: write (tensor,)")
    slices = tuple(iterable_tensors)
    check_on_device("gradient_accumulation", [*slices, *carried_tensors])
    params = [param for param in model.parameters() if param.requires_grad]
    turns = slices[0].shape[0] if slices and slices[0].dim() else 0
    if not turns:
        raise ValueError("gradient_accumulation needs tensors with at least one part along their first dimension")

    def part(carry: Any, x: Any) -> tuple[Any, Any]:
        grads, carried = carry
        with torch.enable_grad():
            result = train_step(*x, *carried)
            loss, *after = result if isinstance(result, (tuple, list)) else (result,)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or len(after) != len(carried):
                raise ValueError(f"the step of gradient_accumulation returns a scalar loss and {len(carried)} carried tensors")
            loss = loss.reshape(()) / turns
            new_grads = torch.autograd.grad(loss, params, allow_unused=True) if loss.requires_grad and params else [None] * len(params)
        used.update(index for index, grad in enumerate(new_grads) if grad is not None)
        added = [total if grad is None else total + grad for total, grad in zip(grads, new_grads, strict=True)]
        return (added, [tensor.detach() for tensor in after]), loss.detach()

    used: set[int] = set()
    with torch.no_grad():
        start = [torch.zeros_like(param) for param in params], list(carried_tensors)
        (grads, carried), losses = scan(part, start, slices)
        loss = losses.sum(0)
    if used:
        torch.autograd.backward([params[index] for index in sorted(used)], [grads[index] for index in sorted(used)])
    return (loss, *carried) if carried else loss
