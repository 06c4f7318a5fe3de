"""Splash attention and its configuration."""

from xla_core.features.kernels.splash_attention import SplashAttention as SplashAttention
from xla_core.features.kernels.splash_attention import splash_attention as splash_attention
from xla_core.features.kernels.splash_attention import splash_attention_jax_wrapper as splash_attention_jax_wrapper
from xla_core.features.kernels.splash_attention import tpu_splash_attention_jax_call_wrapper as tpu_splash_attention_jax_call_wrapper
from xla_core.ops.nn.attention.splash_kernel import SplashAttentionConfig as SplashAttentionConfig
from xla_core.ops.nn.attention.splash_kernel import sa_custom_backward_fake as sa_custom_backward_fake
from xla_core.ops.nn.attention.splash_kernel import sa_custom_forward_fake as sa_custom_forward_fake

__all__ = [name for name in dir() if not name.startswith("__")]
