"""Make an optimizer create its state, so that there are tensors to restore into."""

from __future__ import annotations

import torch

import torch_xla
from xla_serialization.core import budget


@budget(compiles=None)
def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Take an optimizer step with gradients of zero, so that `state_dict()` has the tensors that `CheckpointManager.restore` fills.

    Destructive: gradients are dropped, step counts go up, weight decay and momentum change parameters. Restore parameters and optimizer
    afterwards. Runs what is pending on the device, as `torch_xla.sync()`. Raises what `optimizer.step()` raises without a closure.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
    return optimizer
