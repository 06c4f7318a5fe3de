"""The inference fast paths of torch.nn.MultiheadAttention and TransformerEncoderLayer, each recorded as one operation."""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from xla_core.ops.elementwise.activation import gelu, relu
from xla_core.ops.linalg.matmul import contract, matrix_product
from xla_core.ops.nn.softmax import mask_like, softmax_over
from xla_core.ops.promote import cast, compute_dtype, expand, full
from xla_core.ops.table import Context, op

Maybe = jax.Array | None


def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    """x @ weight^T + bias in the dtype of `x`."""
    product = contract(x, cast(weight, x.dtype), ((x.ndim - 1,), (1,)))
    return lax.add(product, expand(cast(bias, x.dtype), product.shape))


def _heads(x: jax.Array, heads: int) -> jax.Array:
    """(batch, length, channels) as (batch, heads, length, channels of a head)."""
    split = lax.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))
    return lax.transpose(split, (0, 2, 1, 3))


def _attention(
    ctx: Context,
    inputs: tuple[jax.Array, jax.Array, jax.Array],
    heads: int,
    projection: tuple[jax.Array, jax.Array],
    output: tuple[jax.Array, jax.Array],
    mask: Maybe,
    mask_type: int | None,
) -> tuple[jax.Array, jax.Array]:
    """Multi-head attention of (batch, length, channels) inputs, and its weights per head."""
    thirds = [lax.split(p, [p.shape[0] // 3] * 3, 0) for p in projection]
    query, key, value = (_heads(_linear(x, w, b), heads) for x, w, b in zip(inputs, *thirds, strict=True))
    query = lax.div(query, full(math.sqrt(query.shape[3]), query.shape, query.dtype))
    scores = contract(query, key, ((3,), (3,)), ((0, 1), (0, 1)))
    if mask is not None:
        scores = lax.select(mask_like(scores, mask, mask_type), full(-math.inf, scores.shape, scores.dtype), scores)
    weights = softmax_over(ctx, scores, (3,))
    mixed = lax.transpose(matrix_product(weights, value), (0, 2, 1, 3))
    return _linear(lax.reshape(mixed, (*mixed.shape[:2], mixed.shape[2] * mixed.shape[3])), *output), weights


@op("_native_multi_head_attention")
def native_multi_head_attention(
    ctx: Context,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    embed_dim: int,
    num_head: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    mask: Maybe = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Maybe, ...]:
    """_native_multi_head_attention(query, key, value, embed_dim, num_head, weights and biases, mask?, ...) -> (output, weights)"""
    inferred = ctx.out[1]
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype), None if inferred is None else lax.full(inferred.shape, 0, inferred.dtype)
    dtype = compute_dtype(ctx.dtype)
    inputs = (cast(query, dtype), cast(key, dtype), cast(value, dtype))
    output, weights = _attention(ctx, inputs, num_head, (qkv_weight, qkv_bias), (proj_weight, proj_bias), mask, mask_type)
    if inferred is None or not need_weights:
        return cast(output, ctx.dtype), None if inferred is None else lax.full(inferred.shape, 0, inferred.dtype)
    if average_attn_weights:
        weights = lax.div(lax.reduce_sum(weights, (1,)), full(num_head, inferred.shape, dtype))
    return cast(output, ctx.dtype), cast(weights, np.dtype(inferred.dtype))


def _layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """Layer normalisation over the last dimension."""
    last, size = x.ndim - 1, full(x.shape[-1], (*x.shape[:-1], 1), x.dtype)

    def mean(v: jax.Array) -> jax.Array:
        return lax.div(lax.expand_dims(lax.reduce_sum(v, (last,)), (last,)), size)

    centred = lax.sub(x, expand(mean(x), x.shape))
    spread = mean(lax.mul(centred, centred))
    unit = lax.mul(centred, expand(lax.rsqrt(lax.add(spread, full(eps, spread.shape, x.dtype))), x.shape))
    return lax.add(lax.mul(unit, expand(cast(weight, x.dtype), x.shape)), expand(cast(bias, x.dtype), x.shape))


@op("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(
    ctx: Context,
    src: jax.Array,
    embed_dim: int,
    num_heads: int,
    qkv_weight: jax.Array,
    qkv_bias: jax.Array,
    proj_weight: jax.Array,
    proj_bias: jax.Array,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: jax.Array,
    norm_bias_1: jax.Array,
    norm_weight_2: jax.Array,
    norm_bias_2: jax.Array,
    ffn_weight_1: jax.Array,
    ffn_bias_1: jax.Array,
    ffn_weight_2: jax.Array,
    ffn_bias_2: jax.Array,
    mask: Maybe = None,
    mask_type: int | None = None,
) -> jax.Array:
    """_transformer_encoder_layer_fwd(src, embed_dim, num_heads, weights and biases, mask?, mask_type?) -> Tensor"""
    if 0 in ctx.shape:
        return lax.full(ctx.shape, 0, ctx.dtype)

    def attention(x: jax.Array) -> jax.Array:
        return _attention(ctx, (x, x, x), num_heads, (qkv_weight, qkv_bias), (proj_weight, proj_bias), mask, mask_type)[0]

    def feed_forward(x: jax.Array) -> jax.Array:
        hidden = _linear(x, ffn_weight_1, ffn_bias_1)
        return _linear(gelu(hidden) if use_gelu else relu(hidden), ffn_weight_2, ffn_bias_2)

    x = cast(src, compute_dtype(ctx.dtype))
    steps = ((attention, norm_weight_1, norm_bias_1), (feed_forward, norm_weight_2, norm_bias_2))
    for compute, weight, bias in steps:
        if norm_first:
            x = lax.add(x, compute(_layer_norm(x, weight, bias, eps)))
        else:
            x = _layer_norm(lax.add(x, compute(x)), weight, bias, eps)
    return cast(x, ctx.dtype)
