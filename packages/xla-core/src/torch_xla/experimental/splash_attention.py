"""Splash attention and its configuration."""

from __future__ import annotations

from xla_core.features.kernels.splash_attention import (
    SplashAttention,
    splash_attention,
    splash_attention_jax_wrapper,
    tpu_splash_attention_jax_call_wrapper,
)
from xla_core.ops.nn.attention.splash_kernel import SplashAttentionConfig, sa_custom_backward_fake, sa_custom_forward_fake

__all__ = [
    "SplashAttention",
    "SplashAttentionConfig",
    "sa_custom_backward_fake",
    "sa_custom_forward_fake",
    "splash_attention",
    "splash_attention_jax_wrapper",
    "tpu_splash_attention_jax_call_wrapper",
]
