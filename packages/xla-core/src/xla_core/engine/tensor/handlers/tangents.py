"""What forward-mode differentiation asks about layouts: a tangent has that of its primal, down to the elements of its storage."""

from __future__ import annotations

import math
from typing import Any

import torch

from xla_core.engine.tensor.recorded import recorded
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.tensor import XLATensor

aten = torch.ops.aten


def _storage_numel(tensor: Any) -> int:
    """How many elements of the tensor's dtype its storage has: the real part of complex numbers has twice as many as there are numbers."""
    if type(tensor) is not XLATensor:
        return int(tensor.numel())
    stored = tensor._storage.value.aval
    return math.prod(stored.shape) * stored.dtype.itemsize // tensor.dtype.itemsize


def has_same_storage_numel(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the data behind two tensors has as many elements."""
    return _storage_numel(args[0]) == _storage_numel(args[1])


def new_zeros_with_same_feature_meta(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Zeros of the first tensor's dtype in the layout of the second; the first dimensions of the first come before."""
    tangent, primal = args
    numel = _storage_numel(primal)
    repeats = type(primal) is XLATensor and primal._view is not None and primal._view.overlaps
    if numel == primal.numel() and not repeats:
        return recorded(aten._new_zeros_with_same_feature_meta.default)(args, kwargs)
    batches = tangent.shape[: kwargs.get("self_num_batch_dims", 0)]
    strides = [numel * math.prod(batches[dim + 1 :]) for dim in range(len(batches))]
    flat = aten.new_zeros.default(tangent, (*batches, numel))
    return aten.as_strided.default(flat, (*batches, *primal.shape), (*strides, *primal.stride()), primal.storage_offset())


HANDLERS: dict[str, Handler] = {
    "_has_same_storage_numel": has_same_storage_numel,
    "_new_zeros_with_same_feature_meta": new_zeros_with_same_feature_meta,
}
