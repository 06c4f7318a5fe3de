"""Show a tensor where a module looks for a parameter, which stays registered there."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def show(owner: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Let `owner.name` be `tensor`: Python looks for attributes of the object before it asks the module for its parameters."""
    owner.__dict__[name] = tensor
    _renew_list(owner)


def hide(owner: nn.Module, name: str) -> None:
    """Let `owner.name` be the parameter again, if there is one."""
    owner.__dict__.pop(name, None)
    _renew_list(owner)


def _renew_list(owner: Any) -> None:
    """Renew the list of parameters that recurrent modules keep."""
    if isinstance(owner, nn.RNNBase):
        owner._flat_weights = [getattr(owner, name, None) for name in owner._flat_weights_names]
