"""JAX's attention kernel for GPUs, in Triton, and what it takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

_BLOCK = 128  # rows of a block of the kernel


def takes_on_gpu(q: jax.Array, k: jax.Array, v: jax.Array) -> bool:
    """Whether the kernel takes these, (batch, heads, length, head_dim): 16-bit floats, as many keys as queries, in whole blocks."""
    same = q.dtype == k.dtype == v.dtype and q.shape[2:] == k.shape[2:] == v.shape[2:]
    return same and q.dtype.itemsize == 2 and q.shape[2] % _BLOCK == 0 and q.shape[3] >= 16


def attention_on_gpu(q: jax.Array, k: jax.Array, v: jax.Array, ids: Any, is_causal: bool, sm_scale: float) -> jax.Array:
    """softmax(q·kᵀ·sm_scale)·v of as many key heads as query heads; ids: segments of queries and keys, (batch, length), or None."""
    from jax.experimental.pallas.ops.gpu import attention as native  # slow to import

    found = native.mha(*[jnp.swapaxes(x, 1, 2) for x in (q, k, v)], ids, sm_scale=sm_scale, causal=is_causal)
    return jnp.swapaxes(found, 1, 2)
