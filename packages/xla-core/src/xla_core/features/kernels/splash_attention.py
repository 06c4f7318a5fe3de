"""Splash attention: causal, local and by segments, with fewer key heads than query heads; on one device or over a mesh."""

from __future__ import annotations

from typing import Any

import jax
import torch

from xla_core.engine.tensor.jax_call import call_jax
from xla_core.features.kernels.gradients import differentiated
from xla_core.features.kernels.platform import context
from xla_core.ops.nn.attention import splash_kernel
from xla_core.ops.nn.attention.splash_kernel import SplashAttentionConfig
from xla_core.ops.table import Context

Maybe = Any
_DEFAULT = SplashAttentionConfig().to_json()


def splash_attention_jax_wrapper(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decoder_segment_ids: Maybe,
    causal: bool,
    config: SplashAttentionConfig,
    attn_logits_soft_cap: float | None,
) -> jax.Array:
    """As `splash_attention`, over jax arrays, divided among the devices of the mesh of `config`."""
    chosen = context(over_mesh=config.mesh is not None)
    return splash_kernel.attend(chosen, query, key, value, decoder_segment_ids, causal, config, attn_logits_soft_cap)


def _operation(q: jax.Array, k: jax.Array, v: jax.Array, config: str, **rest: Any) -> jax.Array:
    return splash_kernel.operation(_context(config), q, k, v, config=config, **rest)


def _gradients(grad_output: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, config: str, **rest: Any) -> list[jax.Array]:
    return splash_kernel.gradients(_context(config), grad_output, q, k, v, config=config, **rest)


def _context(config: str) -> Context:
    return context(over_mesh=SplashAttentionConfig.from_json(config).mesh is not None)


class SplashAttention(torch.autograd.Function):
    """`splash_attention` as a function to apply, with all arguments in line."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        config: str,
        decoder_segment_ids: torch.Tensor | None,
        causal: bool,
        attn_logits_soft_cap: float | None,
    ) -> torch.Tensor:
        """The output, as `splash_attention` describes it."""
        ctx.save_for_backward(q, k, v, decoder_segment_ids)
        ctx.rest = config, causal, attn_logits_soft_cap
        result: torch.Tensor = splash_kernel.FORWARD(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)[0]
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k and v."""
        q, k, v, ids = ctx.saved_tensors
        config, causal, soft_cap = ctx.rest
        return *splash_kernel.BACKWARD(grad_output, q, k, v, config, ids, causal, soft_cap), None, None, None, None


def splash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str | SplashAttentionConfig | None = None,
    decoder_segment_ids: torch.Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """softmax(cap(q·kᵀ))·v over (batch, heads, length, head_dim); queries come scaled, key heads may be fewer than query heads.

    config: a SplashAttentionConfig or its JSON; None is the default. decoder_segment_ids: (batch, length); a query sees the keys of its
    own segment. Differentiable.
    """
    if not isinstance(config, (str, SplashAttentionConfig, type(None))):
        raise TypeError(f"the configuration of splash attention is a SplashAttentionConfig or its JSON, got a {type(config).__name__}")
    text = config.to_json() if isinstance(config, SplashAttentionConfig) else config or _DEFAULT
    derived = differentiated(q, k, v)
    result: torch.Tensor = splash_kernel.WHOLE(q, k, v, text, decoder_segment_ids, causal, attn_logits_soft_cap, derived)
    return result


def tpu_splash_attention_jax_call_wrapper(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    config: SplashAttentionConfig,
    decoder_segment_ids: torch.Tensor | None,
    causal: bool,
    attn_logits_soft_cap: float | None = None,
    is_forward: bool = True,
    grad_output: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The output and two times None; with is_forward=False the gradients of query, key and value for `grad_output`."""
    rest = {"config": config.to_json(), "causal": causal, "attn_logits_soft_cap": attn_logits_soft_cap}
    if is_forward:
        return call_jax(_operation, (query, key, value), {**rest, "decoder_segment_ids": decoder_segment_ids}), None, None
    if grad_output is None:
        raise ValueError("the gradients of splash attention need grad_output")
    gradients = call_jax(_gradients, (grad_output, query, key, value), {**rest, "decoder_segment_ids": decoder_segment_ids})
    return tuple(gradients)
