"""Scaled dot product attention as one operation, with its gradient: the rows to which the frontend can route it.

Nothing of the size of the scores is kept for the gradient: it is computed again from the saved logarithm of each row's sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.cpu import attention as cpu_attention
from xla_core.ops.cpu import staged
from xla_core.ops.facts import Autocast
from xla_core.ops.linalg.matmul import contract, matrix_product
from xla_core.ops.promote import Number, cast, compute_dtype, expand, full
from xla_core.ops.table import Context, op, without_lowering

Real = Number | jax.Array
Maybe = jax.Array | None


def _no_dropout(dropout_p: float) -> None:
    if dropout_p > 0:
        raise UnsupportedOperationError(
            "fused attention has no dropout: let scaled_dot_product_attention decompose (SDPBackend.MATH) when dropout_p > 0"
        )


def _transposed(x: jax.Array) -> jax.Array:
    return lax.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _for_each_query_head(x: jax.Array, lead: tuple[int, ...]) -> jax.Array:
    """Keys or values repeated so that there is one for each query head (grouped query attention), and broadcast over batches."""
    if x.ndim > 2 and lead and x.shape[-3] not in (1, lead[-1]):
        copies = lead[-1] // x.shape[-3]
        repeated = lax.broadcast_in_dim(x, (*x.shape[:-2], copies, *x.shape[-2:]), [i if i < x.ndim - 2 else i + 1 for i in range(x.ndim)])
        x = lax.reshape(repeated, (*x.shape[:-3], lead[-1], *x.shape[-2:]))
    return expand(x, (*lead, *x.shape[-2:]))


def _summed_to(ctx: Context, grad: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The inverse for gradients: summed over what was repeated or broadcast."""
    if grad.shape == shape:
        return grad
    extra = grad.ndim - len(shape)
    grad = staged.total(ctx, grad, tuple(range(extra)))
    for axis, (have, want) in enumerate(zip(grad.shape, shape, strict=True)):
        if have != want:
            split = lax.reshape(grad, (*grad.shape[:axis], want, have // want, *grad.shape[axis + 1 :]))
            grad = staged.total(ctx, split, (axis + 1,))
    return grad


def _scale(query: jax.Array, scale: float | None) -> float:
    return scale if scale is not None else 1 / math.sqrt(query.shape[-1])


def _scores(query: jax.Array, key: jax.Array, mask: Maybe, is_causal: bool, scale: float) -> jax.Array:
    """query @ key^T * scale with masks applied: a boolean one keeps where True, another is added."""
    if query.dtype == compute_dtype(query.dtype):
        scores = matrix_product(lax.mul(query, full(scale, query.shape, query.dtype)), _transposed(key))
    else:
        scores = matrix_product(query, _transposed(key))
        scores = lax.mul(scores, full(scale, scores.shape, scores.dtype))
    hidden = full(-math.inf, scores.shape, scores.dtype)
    if mask is not None and mask.dtype == np.bool_:
        scores = lax.select(expand(mask, scores.shape), scores, hidden)
    elif mask is not None:
        scores = lax.add(scores, expand(cast(mask, scores.dtype), scores.shape))
    if is_causal:
        row, column = (lax.broadcasted_iota(np.dtype(np.int32), scores.shape, scores.ndim - i) for i in (2, 1))
        scores = lax.select(lax.ge(row, column), scores, hidden)
    return scores


def _sees_nothing(scores: jax.Array, mask: Maybe) -> bool:
    """Whether there may be a query without keys to see. A causal one sees the first."""
    return mask is not None or scores.shape[-1] == 0


def _over_keys(row: jax.Array, like: jax.Array) -> jax.Array:
    """One value per query over a trailing dimension."""
    return lax.broadcast_in_dim(row, like.shape, range(row.ndim))


def _weights(ctx: Context, scores: jax.Array, mask: Maybe) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Unnormalised weights, their sum (1 for a row masked throughout), and its logarithm, per query."""
    last = scores.ndim - 1
    top, guarded = staged.largest(ctx, scores, (last,)), _sees_nothing(scores, mask)
    if guarded:
        top = cpu_attention.finite(top)
    weights = lax.exp(lax.sub(scores, _over_keys(top, scores)))
    total = staged.total(ctx, weights, (last,))
    logsumexp = lax.add(top, lax.log(total))
    if guarded:
        total = lax.select(lax.eq(total, lax.full_like(total, 0)), lax.full_like(total, 1), total)
    return weights, total, logsumexp


def _factor_dtype(ctx: Context, dtype: np.dtype) -> np.dtype:
    """In which dtype products take their operands: halves where the platform multiplies them, which a CPU does not. Sums are wide."""
    return compute_dtype(dtype) if ctx.platform == "cpu" else dtype


def attend(
    ctx: Context, query: jax.Array, key: jax.Array, value: jax.Array, mask: Maybe, is_causal: bool, scale: float | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(output, normalised weights, logsumexp) in the compute dtype; what is not used costs nothing."""
    dtype = _factor_dtype(ctx, query.dtype)
    lead = query.shape[:-2] if query.ndim >= key.ndim else lax.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query = expand(cast(query, dtype), (*lead, *query.shape[-2:]))
    key, value = (_for_each_query_head(cast(x, dtype), lead) for x in (key, value))
    weights, total, logsumexp = _weights(ctx, _scores(query, key, mask, is_causal, _scale(query, scale)), mask)
    shares = lax.div(weights, _over_keys(total, weights))
    if ctx.platform == "tpu":  # its compiler makes one kernel of a softmax times values, written so
        return matrix_product(cast(shares, dtype), value), shares, logsumexp
    output = matrix_product(cast(weights, dtype), value)  # fewer divisions
    return lax.div(output, _over_keys(total, output)), shares, logsumexp


def attend_backward(
    ctx: Context,
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Maybe,
    output: jax.Array,
    logsumexp: jax.Array,
    is_causal: bool,
    scale: float | None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Gradients of query, key, value and scores, the first three in the shapes given."""
    wide, dtype = compute_dtype(query.dtype), _factor_dtype(ctx, query.dtype)
    lead, factor = query.shape[:-2], _scale(query, scale)
    shapes = [x.shape for x in (key, value)]
    level = staged.total(ctx, lax.mul(cast(grad, wide), cast(output, wide)), (grad.ndim - 1,))
    grad, query, logsumexp = cast(grad, dtype), cast(query, dtype), cast(logsumexp, wide)
    key, value = (_for_each_query_head(cast(x, dtype), lead) for x in (key, value))
    scores = _scores(query, key, mask, is_causal, factor)
    logsumexp = lax.reshape(logsumexp, scores.shape[:-1])
    if _sees_nothing(scores, mask):
        logsumexp = cpu_attention.finite(logsumexp)
    weights = lax.exp(lax.sub(scores, _over_keys(logsumexp, scores)))
    rows, batch = scores.ndim - 2, tuple(range(scores.ndim - 2))
    to_value = contract(cast(weights, dtype), grad, ((rows,), (rows,)), (batch, batch))
    # As large as the scores: kept in halves where the platform multiplies these.
    to_weights = cast(cast(matrix_product(grad, _transposed(value)), dtype), wide)
    to_scores = lax.mul(weights, lax.sub(to_weights, _over_keys(level, to_weights)))
    scaled = cast(lax.mul(to_scores, full(factor, to_scores.shape, wide)), dtype)
    to_query = matrix_product(scaled, key)
    to_key = contract(scaled, query, ((rows,), (rows,)), (batch, batch))
    return to_query, _summed_to(ctx, to_key, shapes[0]), _summed_to(ctx, to_value, shapes[1]), to_scores


def _attended(
    ctx: Context, query: jax.Array, key: jax.Array, value: jax.Array, mask: Maybe, is_causal: bool, scale: float | None
) -> tuple[jax.Array, jax.Array]:
    """(output, logsumexp), in the way that is fastest on the platform."""
    if cpu_attention.in_blocks(ctx, query, key, value, mask):
        return cpu_attention.attend(query, key, value, mask, is_causal, _scale(query, scale))
    output, _, logsumexp = attend(ctx, query, key, value, mask, is_causal, scale)
    return output, logsumexp


def _gradients(
    ctx: Context,
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: Maybe,
    output: jax.Array,
    logsumexp: jax.Array,
    is_causal: bool,
    scale: float | None,
) -> tuple[jax.Array, ...]:
    """Gradients of query, key and value, in the way that is fastest on the platform."""
    if cpu_attention.in_blocks(ctx, query, key, value, mask):
        return cpu_attention.attend_backward(grad, query, key, value, mask, output, logsumexp, is_causal, _scale(query, scale))
    return attend_backward(ctx, grad, query, key, value, mask, output, logsumexp, is_causal, scale)[:3]


def _as_inferred(ctx: Context, index: int, value: jax.Array) -> jax.Array:
    out = ctx.out[index]
    return value if out is None else lax.reshape(cast(value, np.dtype(out.dtype)), out.shape)


@op("_scaled_dot_product_attention_math")
def attention_math(
    ctx: Context,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_mask: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Maybe = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """_scaled_dot_product_attention_math(query, key, value, attn_mask?, dropout_p, is_causal, dropout_mask?, *, scale?, enable_gqa)"""
    _no_dropout(dropout_p)
    output, weights, _ = attend(ctx, query, key, value, attn_mask, is_causal, scale)
    return _as_inferred(ctx, 0, output), _as_inferred(ctx, 1, weights)


@op("_scaled_dot_product_fused_attention_overrideable")
def fused_attention(
    ctx: Context,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: Maybe = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Maybe, ...]:
    """_scaled_dot_product_fused_attention_overrideable(query, key, value, attn_bias?, ...) -> (output, logsumexp, unused)"""
    _no_dropout(dropout_p)
    output, logsumexp = _attended(ctx, query, key, value, attn_bias, is_causal, scale)
    unused = [None if out is None else lax.full(out.shape, 0, out.dtype) for out in ctx.out[2:]]
    return _as_inferred(ctx, 0, output), _as_inferred(ctx, 1, logsumexp), *unused


@op("_scaled_dot_product_fused_attention_overrideable_backward")
def fused_attention_backward(
    ctx: Context,
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    attn_bias: Maybe,
    grad_input_mask: Sequence[bool],
    out: jax.Array,
    logsumexp: jax.Array,
    cum_seq_q: Maybe,
    cum_seq_k: Maybe,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Maybe,
    philox_offset: Maybe,
    *,
    scale: float | None = None,
) -> tuple[Maybe, ...]:
    """_scaled_dot_product_fused_attention_overrideable_backward(...) -> gradients of query, key, value and attn_bias"""
    _no_dropout(dropout_p)
    operands = (grad, query, key, value, attn_bias, out, logsumexp, is_causal, scale)
    if attn_bias is not None and grad_input_mask[3]:
        *gradients, to_scores = attend_backward(ctx, *operands)
        gradients.append(_summed_to(ctx, to_scores, attn_bias.shape))
    else:
        gradients = list(_gradients(ctx, *operands))
    return tuple(None if inferred is None else _as_inferred(ctx, i, gradients[i]) for i, inferred in enumerate(ctx.out))


def _flash_attention_results(query: torch.Tensor, *args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithms in the query's precision; torch 2.10 promises f32 always."""
    result, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(query, *args)
    return result, logsumexp.to(torch.promote_types(query.dtype, torch.float32))


without_lowering("scaled_dot_product_attention", autocast=Autocast.LOWER)


@op("_scaled_dot_product_flash_attention_for_cpu", shapes=_flash_attention_results)
def flash_attention(
    ctx: Context,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Maybe = None,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, *, attn_mask?, scale?) -> (output, logsumexp)"""
    _no_dropout(dropout_p)
    output, logsumexp = _attended(ctx, query, key, value, attn_mask, is_causal, scale)
    return _as_inferred(ctx, 0, output), _as_inferred(ctx, 1, logsumexp)


@op("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    ctx: Context,
    grad: jax.Array,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    out: jax.Array,
    logsumexp: jax.Array,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Maybe = None,
    scale: float | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """_scaled_dot_product_flash_attention_for_cpu_backward(...) -> gradients of query, key, value"""
    _no_dropout(dropout_p)
    gradients = _gradients(ctx, grad, query, key, value, attn_mask, out, logsumexp, is_causal, scale)
    return _as_inferred(ctx, 0, gradients[0]), _as_inferred(ctx, 1, gradients[1]), _as_inferred(ctx, 2, gradients[2])
