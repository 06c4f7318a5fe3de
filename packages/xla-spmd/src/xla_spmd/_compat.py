"""The private names of torch that this package cannot do without; tests/test_compat.py says what breaks when one of them goes."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree

# A tensor with shape, dtype, device and autograd, but without memory of its own.
make_wrapper: Any = torch.Tensor._make_wrapper_subclass

# As `__torch_function__`: functions of torch stay what they are, only operations come through.
DISABLED_TORCH_FUNCTION: Any = torch._C._disabled_torch_function_impl

# Nested tuples, lists and dicts, as torch's dispatch brings them.
tree_map: Any = torch.utils._pytree.tree_map

# A context in which writes to a tensor do not count as changes of what autograd saved.
same_version: Any = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]


def dtensor_spec(mesh: Any, placements: tuple[Any, ...], like: torch.Tensor) -> Any:
    """The DTensor spec of a tensor: mesh, placements, shape, strides and dtype."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    return DTensorSpec(mesh, placements, TensorMeta(like.shape, like.stride(), like.dtype))
