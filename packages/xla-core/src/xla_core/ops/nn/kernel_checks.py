"""What kernels refuse at the call: TypeError for dtypes, ValueError for shapes and numbers, with what would do."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def check_floating(what: str, **tensors: torch.Tensor | None) -> None:
    """Raise TypeError for a tensor that is not of floating point; None is left out."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(f"{what} computes in floating point, got {name} of {tensor.dtype}: convert it first")


def check_integers(what: str, **tensors: torch.Tensor | None) -> None:
    """Raise TypeError for a tensor that holds no integers; None is left out."""
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool):
            raise TypeError(f"the {name} of {what} are integers, got {tensor.dtype}: convert them to torch.int32")


def check_shape(what: str, name: str, tensor: torch.Tensor | None, shape: Sequence[int]) -> None:
    """Raise ValueError for another shape; None is left out."""
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"the {name} of {what} have shape {tuple(shape)} here, got {tuple(tensor.shape)}")


def check_soft_cap(what: str, soft_cap: float | None) -> None:
    """Raise ValueError for a cap that leaves nothing."""
    if soft_cap == 0:
        raise ValueError(f"the soft cap of {what} is not 0: give None for none")


def attended(what: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """An empty output of an attention over (batch, heads, length, head_dim). Raises TypeError and ValueError for what does not fit."""
    check_floating(what, q=q, k=k, v=v)
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"{what} takes (batch, heads, length, head_dim), got {q.ndim}, {k.ndim} and {v.ndim} dimensions")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"queries {tuple(q.shape)}, keys {tuple(k.shape)} and values {tuple(v.shape)} do not fit together")
    return q.new_empty(*q.shape[:3], v.shape[3])
