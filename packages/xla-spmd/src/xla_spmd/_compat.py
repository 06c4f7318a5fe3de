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
