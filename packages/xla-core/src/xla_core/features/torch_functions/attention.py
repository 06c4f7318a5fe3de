"""`scaled_dot_product_attention` as one recorded operation: torch has no hook for it below autograd on devices of others.

torch would split it into a dozen operations and as many in backward. As on the CPU, what the fused kernel does not cover
(dropout, a mask that is trained, other than four dimensions) is split.
"""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base import private_torch
from xla_core.engine.tensor.dispatch import add_handlers
from xla_core.engine.tensor.plain import tensor_behind

_whole = torch.ops.aten.scaled_dot_product_attention.default
_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_DTYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})
_library = torch.library.Library("aten", "IMPL")


def _covered(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, is_causal: bool, enable_gqa: bool) -> bool:
    """Whether the fused operation gives what torch's composition would, errors included."""
    if dropout_p != 0 or any(tensor_behind(one) is None for one in (query, key, value)):
        return False
    dtype, shape, keys = query.dtype, query.shape, key.shape
    if not (len(shape) == len(keys) == len(value.shape) == 4 and dtype is key.dtype is value.dtype and dtype in _DTYPES):
        return False
    if not (shape[0] == keys[0] and keys[:3] == value.shape[:3] and shape[3] == keys[3] == value.shape[3]):
        return False
    if 0 in shape or 0 in keys:
        return False
    if shape[1] % keys[1] if enable_gqa else shape[1] != keys[1]:
        return False
    if mask is None:
        return True
    if is_causal and private_torch.torch_version >= (2, 14):  # which refuses both at once
        return False
    if tensor_behind(mask) is None or mask.requires_grad or mask.dtype not in (torch.bool, dtype) or mask.ndim not in (2, 4):
        return False
    full = (*shape[:3], keys[2])
    return all(have in (1, want) for have, want in zip(reversed(mask.shape), reversed(full), strict=False))


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention`, fused where the fused operation covers it."""
    if _covered(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask.to(query.dtype).log()  # 0 where True, else -inf
        return _fused(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]
    return _whole.decompose(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def register() -> None:
    """Put it in front of autograd, which knows the fused operation's gradient."""
    add_handlers({"scaled_dot_product_attention": lambda args, kwargs: scaled_dot_product_attention(*args, **kwargs)})  # in inference mode
    _library.impl("scaled_dot_product_attention", scaled_dot_product_attention, "AutogradPrivateUse1")
