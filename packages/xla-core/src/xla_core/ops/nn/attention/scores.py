"""What the reference computations of attention share."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DEFAULT_MASK_VALUE = -0.7 * float(np.finfo(np.float32).max)  # of a score that does not count, as in JAX's kernels


def wide(x: jax.Array) -> jax.Array:
    """`x` in the dtype in which scores are computed: float32, or float64 where it is that."""
    return x if x.dtype == np.float64 else x.astype(np.float32)


def capped(scores: jax.Array, soft_cap: float | None) -> jax.Array:
    """Scores squeezed smoothly into (-soft_cap, soft_cap)."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def causal(queries: int, keys: int) -> jax.Array:
    """Key at most query, both counted from the start: (queries, keys)."""
    return jnp.arange(keys)[None, :] <= jnp.arange(queries)[:, None]


def masked(scores: jax.Array, visible: Any, mask_value: float | None = None) -> jax.Array:
    """Scores with `mask_value` where `visible` is not true; None shows all."""
    return scores if visible is None else jnp.where(visible, scores, DEFAULT_MASK_VALUE if mask_value is None else mask_value)


def both(first: Any, second: Any) -> Any:
    """Where both masks show; None shows all."""
    return second if first is None else first if second is None else first & second


def weighted(scores: jax.Array, values: jax.Array) -> jax.Array:
    """softmax(scores) @ values."""
    return jax.nn.softmax(scores, axis=-1) @ values.astype(scores.dtype)
