"""Whether kernels will be differentiated."""

from __future__ import annotations

import torch


def differentiated(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd records what is computed of these now."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
