"""Operations from JAX functions."""

from __future__ import annotations

from xla_core.frontend.jax_call import call_jax

__all__ = ["call_jax"]
