"""Make an optimizer's state exist, so that there is something to restore into."""

from __future__ import annotations

import torch

import torch_xla
from xla_serialization.core import budget


@budget(compiles=None)
def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer after a step with gradients of zero: its `state_dict()` has the tensors that `CheckpointManager.restore` fills.

    Destructive: gradients are dropped, counts of steps go up, weight decay and momentum move parameters. Restore parameters and optimizer
    behind it. Runs what is pending on the device, as `torch_xla.sync()`. Raises what `optimizer.step()` raises without a closure.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    torch_xla.sync()
    return optimizer
