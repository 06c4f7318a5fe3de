"""Connectionist temporal classification: its loss and gradient, for a batch at once.

The recursions over time are those of A. Graves et al., 2006, "Connectionist Temporal Classification", in logarithms.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import lax

from xla_core.ops.axes import iota_along
from xla_core.ops.facts import Autocast
from xla_core.ops.index.index import take_along
from xla_core.ops.index.scatter import scatter_along
from xla_core.ops.internal import define
from xla_core.ops.promote import cast, expand, full
from xla_core.ops.reduce.scan import log_add_exp
from xla_core.ops.table import Context, op, without_lowering

_INT64 = np.dtype(np.int64)
_NEVER = float("-inf")
# Differences of log probabilities of whole inputs lose the digits that float32 has.
_WIDE = np.dtype(np.float64)


def _shapes(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, longest: int, blank: int) -> Any:
    batch = log_probs.shape[1]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, log_probs.shape[0], 2 * longest + 1)


define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int longest, int blank) -> (Tensor, Tensor)",
    _shapes,
)
define(
    "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, Tensor loss, "
    "Tensor log_alpha, int longest, int blank, bool zero_infinity) -> Tensor",
    lambda grad, log_probs, *_: log_probs.new_empty(log_probs.shape),
)
without_lowering("ctc_loss", autocast=Autocast.FLOAT32)


def _labels(targets: jax.Array, lengths: jax.Array, longest: int, blank: int) -> jax.Array:
    """Targets with a blank before, between and behind the labels: (batch, 2 * longest + 1)."""
    if targets.ndim == 1:  # all targets in one row
        starts = lax.sub(lax.cumsum(lengths, 0), lengths)
        places = lax.add(lax.broadcast_in_dim(starts, (lengths.size, longest), (0,)), iota_along((lengths.size, longest), 1, _INT64))
        flat = lax.broadcast_in_dim(targets, (lengths.size, targets.size), (1,))
        targets = take_along(flat, 1, places) if targets.size else full(blank, places.shape, _INT64)
    targets = lax.slice_in_dim(targets, 0, longest, axis=1)
    return (
        lax.pad(targets, np.int64(blank), [(0, 0, 0), (1, 1, 1 if longest else 0)]) if longest else full(blank, (lengths.size, 1), _INT64)
    )


def _shifted(x: jax.Array, by: int, fill: float) -> jax.Array:
    """Columns moved to the right by `by`."""
    width = x.shape[1]
    return lax.slice_in_dim(lax.pad(x, np.asarray(fill, x.dtype)[()], [(0, 0, 0), (by, 0, 0)]), 0, width, axis=1)


def _skips(labels: jax.Array, blank: int) -> jax.Array:
    """The mask of labels that differ from the one two places before, so that the blank between may be left out."""
    differs = lax.ne(labels, _shifted(labels, 2, blank))
    return lax.bitwise_and(differs, lax.ge(iota_along(labels.shape, 1, _INT64), full(2, labels.shape, _INT64)))


def _step(before: jax.Array, skips: jax.Array) -> jax.Array:
    """Log probabilities of arriving in each state from those it can be reached from."""
    twice = lax.select(skips, _shifted(before, 2, _NEVER), lax.full_like(before, _NEVER))
    return log_add_exp(log_add_exp(before, _shifted(before, 1, _NEVER)), twice)


def _emitted(log_probs: jax.Array, labels: jax.Array) -> jax.Array:
    """Log probability of each label at each time: (time, batch, states)."""
    places = lax.broadcast_in_dim(labels, (log_probs.shape[0], *labels.shape), (1, 2))
    return take_along(log_probs, 2, places)


def _forward(emitted: jax.Array, labels: jax.Array, states: jax.Array, lengths: jax.Array, blank: int) -> jax.Array:
    """log alpha (time, batch, states): all ways to emit the first labels until each time. Past an input's end it stays."""
    skips, column = _skips(labels, blank), iota_along(labels.shape, 1, _INT64)
    valid = lax.lt(column, lax.broadcast_in_dim(states, labels.shape, (0,)))
    never = full(_NEVER, labels.shape, emitted.dtype)

    def advance(before: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        time, emission = now
        first = lax.select(lax.lt(column, full(2, column.shape, _INT64)), lax.full_like(emission, 0), never)
        arrived = lax.select(lax.broadcast(lax.eq(time, np.int64(0)), labels.shape), first, _step(before, skips))
        alpha = lax.select(valid, lax.add(arrived, emission), never)
        alpha = lax.select(lax.broadcast_in_dim(lax.lt(lax.broadcast(time, lengths.shape), lengths), labels.shape, (0,)), alpha, before)
        return alpha, alpha

    alphas: jax.Array = lax.scan(advance, never, (lax.iota(np.int64, emitted.shape[0]), emitted))[1]
    return alphas


def _backward(emitted: jax.Array, labels: jax.Array, states: jax.Array, lengths: jax.Array, blank: int) -> jax.Array:
    """log beta (time, batch, states): all ways to emit the other labels from each time on."""
    column = iota_along(labels.shape, 1, _INT64)
    wide_states = lax.broadcast_in_dim(states, labels.shape, (0,))
    ends = lax.bitwise_and(lax.lt(column, wide_states), lax.ge(column, lax.sub(wide_states, full(2, labels.shape, _INT64))))
    valid = lax.lt(column, wide_states)
    never = full(_NEVER, labels.shape, emitted.dtype)
    mirrored = _shifted(lax.rev(_skips(labels, blank), (1,)), 2, False)

    def retreat(after: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        time, emission = now
        wide_time = lax.broadcast(lax.add(time, np.int64(1)), lengths.shape)
        last = lax.broadcast_in_dim(lax.eq(wide_time, lengths), labels.shape, (0,))
        inside = lax.broadcast_in_dim(lax.le(wide_time, lengths), labels.shape, (0,))
        left = lax.rev(_step(lax.rev(after, (1,)), mirrored), (1,))
        left = lax.select(last, lax.select(ends, lax.full_like(left, 0), never), left)
        beta = lax.select(lax.bitwise_and(valid, inside), lax.add(left, emission), never)
        return beta, beta

    betas: jax.Array = lax.scan(retreat, never, (lax.iota(np.int64, emitted.shape[0]), emitted), reverse=True)[1]
    return betas


@op("xla_core::ctc_loss")
def _ctc_loss(
    ctx: Context,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    longest: int,
    blank: int,
) -> tuple[jax.Array, jax.Array]:
    """ctc_loss(…) -> (neg_log_likelihood (batch,), log_alpha (batch, time, 2 * longest + 1)); longest: most labels of a target."""
    lengths, sizes = cast(input_lengths, _INT64), cast(target_lengths, _INT64)
    log_probs = cast(log_probs, _WIDE)
    labels = _labels(cast(targets, _INT64), sizes, longest, blank)
    states = lax.add(lax.mul(sizes, full(2, sizes.shape, _INT64)), full(1, sizes.shape, _INT64))
    alphas = _forward(_emitted(log_probs, labels), labels, states, lengths, blank)
    empty = lax.eq(lengths, full(0, lengths.shape, _INT64))
    final = lax.index_in_dim(alphas, alphas.shape[0] - 1, keepdims=False) if alphas.shape[0] else full(_NEVER, labels.shape, alphas.dtype)
    last = lax.expand_dims(lax.sub(states, full(1, states.shape, _INT64)), (1,))
    in_blank = lax.reshape(take_along(final, 1, last), ctx.shape)
    in_label = lax.reshape(take_along(final, 1, lax.sub(last, full(1, last.shape, _INT64))), ctx.shape)
    has_label = lax.gt(sizes, full(0, sizes.shape, _INT64))
    likelihood = log_add_exp(in_blank, lax.select(has_label, in_label, lax.full_like(in_label, _NEVER)))
    nothing = lax.select(has_label, lax.full_like(likelihood, _NEVER), lax.full_like(likelihood, 0))
    loss = lax.neg(lax.select(empty, nothing, likelihood))
    return cast(loss, ctx.dtype), cast(lax.transpose(alphas, (1, 0, 2)), ctx.dtype)


@op("xla_core::ctc_loss_backward")
def _ctc_loss_backward(
    ctx: Context,
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    loss: jax.Array,
    log_alpha: jax.Array,
    longest: int,
    blank: int,
    zero_infinity: bool,
) -> jax.Array:
    """ctc_loss_backward(…) -> the gradient of log_probs (time, batch, classes), zero past the end of an input."""
    lengths, sizes = cast(input_lengths, _INT64), cast(target_lengths, _INT64)
    grad, log_probs, loss, log_alpha = (cast(each, _WIDE) for each in (grad, log_probs, loss, log_alpha))
    labels = _labels(cast(targets, _INT64), sizes, longest, blank)
    states = lax.add(lax.mul(sizes, full(2, sizes.shape, _INT64)), full(1, sizes.shape, _INT64))
    betas = _backward(_emitted(log_probs, labels), labels, states, lengths, blank)
    both = lax.add(lax.transpose(log_alpha, (1, 0, 2)), betas)  # holds each emission twice
    largest = lax.expand_dims(lax.reduce_max(both, (2,)), (2,)) if both.shape[2] else both
    largest = lax.select(lax.is_finite(largest), largest, lax.full_like(largest, 0))
    shares = lax.exp(lax.sub(both, expand(largest, both.shape)))
    places = lax.broadcast_in_dim(labels, both.shape, (1, 2))
    summed = lax.log(scatter_along(full(0, log_probs.shape, log_probs.dtype), 2, places, shares, "sum"))
    wide_loss = lax.broadcast_in_dim(loss, log_probs.shape, (1,))
    posterior = lax.exp(lax.sub(lax.add(lax.add(summed, expand(largest, log_probs.shape)), wide_loss), log_probs))
    found = lax.mul(lax.sub(lax.exp(log_probs), posterior), lax.broadcast_in_dim(grad, log_probs.shape, (1,)))
    inside = lax.lt(iota_along(log_probs.shape, 0, _INT64), lax.broadcast_in_dim(lengths, log_probs.shape, (1,)))
    if zero_infinity:
        inside = lax.bitwise_and(inside, lax.ne(wide_loss, lax.full_like(wide_loss, float("inf"))))
    return cast(lax.select(inside, found, lax.full_like(found, 0)), ctx.dtype)
