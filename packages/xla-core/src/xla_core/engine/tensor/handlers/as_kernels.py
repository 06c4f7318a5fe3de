"""Calls whose results torch's kernels make in another shape or type than torch infers on meta tensors: written so that the two agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xla_core.engine.tensor.recorded import recorded
from xla_core.engine.tensor.schema import Handler

Rewrite = Callable[..., tuple[Any, ...]]


def _one_type(weight: Any, indices: torch.Tensor, offsets: torch.Tensor, *others: Any) -> tuple[Any, ...]:
    """Arguments of `embedding_bag`. Of indices and offsets of two integer types kernels make int64, and give such results."""
    if {indices.dtype, offsets.dtype} == {torch.int32, torch.int64}:
        indices, offsets = indices.long(), offsets.long()
    return weight, indices, offsets, *others


def _all_dimensions(x: torch.Tensor, dim: Any = None, *others: Any) -> tuple[Any, ...]:
    """Arguments of `nansum`. Kernels reduce all dimensions where none is named."""
    return x, None if isinstance(dim, (list, tuple)) and not dim else dim, *others


def _handler(name: str, rewrite: Rewrite) -> Handler:
    overload = getattr(torch.ops.aten, name).default
    return lambda args, kwargs: recorded(overload)(rewrite(*args), kwargs)


HANDLERS: dict[str, Handler] = {
    "_embedding_bag": _handler("_embedding_bag", _one_type),
    "_embedding_bag_forward_only": _handler("_embedding_bag_forward_only", _one_type),
    "nansum": _handler("nansum", _all_dimensions),
}
