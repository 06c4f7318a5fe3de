"""Random whole numbers, permutations, draws from categories, and the counting distributions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.dtypes import torch_dtype
from xla_core.ops.axes import at_run_time
from xla_core.ops.checks import Fault
from xla_core.ops.promote import cast, compute_dtype, full, is_float
from xla_core.ops.random.random import exponential_sample, key_of
from xla_core.ops.random.threefry import bits, bits64, digits, unit
from xla_core.ops.table import Context, op

_U64 = np.dtype(np.uint64)
_I64 = np.dtype(np.int64)
_NARROW = 1 << 16


def _wrapped(value: int) -> int:
    """A Python integer modulo 2 ** 64 as a signed one."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _integers(ctx: Context, low: int, count: int) -> jax.Array:
    """`count` consecutive whole numbers from `low` on, equally likely, as int64 (unsigned 64-bit ranges wrap)."""
    seed, shape = key_of(ctx), ctx.shape
    if count <= _NARROW:
        # Multiply instead of dividing: the bias of at most count / 2 ** 32 cannot be seen for short ranges.
        word = lax.convert_element_type(bits(seed, shape)[0], _U64)
        offset = lax.shift_right_logical(word * full(count, shape, _U64), full(32, shape, _U64))
    else:
        offset = bits64(seed, shape)
        if count < 1 << 64:
            offset = lax.rem(offset, full(count, shape, _U64))
    return lax.convert_element_type(offset, _I64) + full(_wrapped(low), shape, _I64)


def _largest_at_most(value: int, dtype: np.dtype) -> float:
    """The largest number of a floating-point `dtype` that does not exceed `value`."""
    rounded = torch.tensor(value, dtype=torch.float64).to(torch_dtype(dtype))
    if float(rounded) > value:
        rounded = torch.nextafter(rounded, torch.tensor(-torch.inf, dtype=rounded.dtype))
    return float(rounded)


def _drawn(ctx: Context, low: int, high: int) -> jax.Array:
    """Whole numbers in [low, high) in the inferred dtype; rounding to a float never reaches `high`."""
    values = _integers(ctx, low, high - low)
    if not is_float(ctx.dtype):
        return cast(values, ctx.dtype)
    return lax.min(cast(values, ctx.dtype), full(_largest_at_most(high - 1, ctx.dtype), ctx.shape, ctx.dtype))


@op("randint", "randint.generator", random=True)
def randint(ctx: Context, high: int, size: Any, **_: Any) -> jax.Array:
    """randint(SymInt high, SymInt[] size, *, ScalarType? dtype=4) -> Tensor."""
    return _drawn(ctx, 0, high)


@op("randint.low", "randint.low_generator", random=True)
def randint_from(ctx: Context, low: int, high: int, size: Any, **_: Any) -> jax.Array:
    """randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=4) -> Tensor."""
    return _drawn(ctx, low, high)


@op("randint_like", "randint_like.generator", random=True, keeps_sharding=True)
def randint_like(ctx: Context, _: jax.Array, high: int, **__: Any) -> jax.Array:
    """randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None) -> Tensor."""
    return _drawn(ctx, 0, high)


@op("randint_like.low_dtype", "randint_like.low_generator_dtype", random=True, keeps_sharding=True)
def randint_like_from(ctx: Context, _: jax.Array, low: int, high: int, **__: Any) -> jax.Array:
    """randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None) -> Tensor."""
    return _drawn(ctx, low, high)


@op("randint_like.Tensor", "randint_like.Tensor_generator", random=True, keeps_sharding=True)
def randint_like_below(ctx: Context, _: jax.Array, high: jax.Array, **__: Any) -> jax.Array:
    """randint_like.Tensor(Tensor self, Tensor high, *, ScalarType? dtype=None) -> Tensor."""
    count = lax.broadcast(cast(lax.reshape(high, ()), _U64), ctx.shape)
    return cast(lax.convert_element_type(lax.rem(bits64(key_of(ctx), ctx.shape), count), _I64), ctx.dtype)


def _top(dtype: np.dtype) -> int:
    """The largest number that `random_` draws for a dtype when it is given no bound."""
    logical = torch_dtype(dtype)
    if logical is torch.bool:
        return 1
    return int(2 ** digits(dtype)) if is_float(dtype) else int(torch.iinfo(logical).max)


@op("random", random=True)
def random(ctx: Context, _: jax.Array, *, generator: Any = None) -> jax.Array:
    """random(Tensor self, *, Generator? generator=None) -> Tensor; from 0 to the largest value of the dtype."""
    return _drawn(ctx, 0, _top(ctx.dtype) + 1)


@op("random.to", random=True)
def random_to(ctx: Context, _: jax.Array, to: int, *, generator: Any = None) -> jax.Array:
    """random.to(Tensor self, int to, *, Generator? generator=None) -> Tensor; in [0, to)."""
    return _drawn(ctx, 0, to)


@op("random.from", random=True)
def random_from(ctx: Context, _: jax.Array, *bounds: int | None, **named: Any) -> jax.Array:
    """random.from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor; in [from, to)."""
    given = dict(zip(("from", "to"), bounds, strict=False)) | named
    end = given.get("to")
    return _drawn(ctx, given["from"], _top(ctx.dtype) + 1 if end is None else end)


@op("randperm", "randperm.generator", random=True)
def randperm(ctx: Context, n: int, **_: Any) -> jax.Array:
    """randperm(SymInt n, *, ScalarType? dtype=4) -> Tensor; positions sorted by 64 random bits each."""
    high, low = bits(key_of(ctx), ctx.shape)
    return cast(lax.sort((high, low, lax.iota(np.int64, n)), num_keys=2)[2], ctx.dtype)


def _inverted(weights: jax.Array, share: jax.Array) -> jax.Array:
    """For one row of weights: the first category of non-zero weight whose running sum exceeds each share of the total."""
    weights, size = at_run_time(weights), weights.shape[0]
    sums = lax.cumsum(weights)
    index = lax.iota(np.int32, size)
    possible = weights > 0
    # Running sums of a parallel scan may rise a little across an empty category: skip to the next one that is not empty.
    following = lax.cummin(lax.select(possible, index, lax.full_like(index, size)), reverse=True)
    last = lax.reduce_max(lax.select(possible, index, lax.full_like(index, 0)), (0,))
    found = jax.numpy.searchsorted(sums, share * sums[-1], side="right")
    return lax.min(following[jax.numpy.minimum(found, size - 1)], lax.broadcast(last, share.shape))


def _with_replacement(ctx: Context, weights: jax.Array, count: int) -> jax.Array:
    share = unit(key_of(ctx), (*weights.shape[:-1], count), weights.dtype)
    return jax.vmap(_inverted)(weights, share) if weights.ndim == 2 else _inverted(weights, share)


@op("multinomial", random=True)
def multinomial(ctx: Context, weights: jax.Array, num_samples: int, replacement: bool = False, *, generator: Any = None) -> jax.Array:
    """multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor."""
    weights = cast(weights, compute_dtype(weights.dtype))
    zero = lax.full_like(weights, 0)
    ctx.check(Fault.WEIGHTS, lax.bitwise_not(lax.bitwise_and(lax.is_finite(weights), lax.ge(weights, zero))))
    total = lax.reduce_sum(weights, (weights.ndim - 1,))
    ctx.check(Fault.NO_WEIGHT, lax.le(total, lax.full_like(total, 0)))
    if replacement:
        return cast(_with_replacement(ctx, weights, num_samples), ctx.dtype)
    # A race of exponential clocks: the order of weight / clock is a draw without replacement.
    scores = weights / exponential_sample(key_of(ctx), weights.shape, weights.dtype)
    _, winners = lax.top_k(scores, num_samples)
    return cast(winners, ctx.dtype)


def _jax_key(ctx: Context) -> jax.Array:
    key: jax.Array = jax.random.wrap_key_data(key_of(ctx), impl="threefry2x32")
    return key


@op("poisson", random=True)
def poisson(ctx: Context, rate: jax.Array, generator: Any = None) -> jax.Array:
    """poisson(Tensor self, Generator? generator=None) -> Tensor."""
    ctx.check(Fault.RATE, lax.lt(rate, lax.full_like(rate, 0)))
    return cast(jax.random.poisson(_jax_key(ctx), cast(rate, compute_dtype(rate.dtype)), ctx.shape, np.int64), ctx.dtype)


@op("binomial", random=True)
def binomial(ctx: Context, count: jax.Array, prob: jax.Array, generator: Any = None) -> jax.Array:
    """binomial(Tensor count, Tensor prob, Generator? generator=None) -> Tensor."""
    wide = compute_dtype(ctx.dtype)
    return cast(jax.random.binomial(_jax_key(ctx), cast(count, wide), cast(prob, wide), ctx.shape, wide), ctx.dtype)


@op("_standard_gamma", random=True)
def standard_gamma(ctx: Context, alpha: jax.Array, generator: Any = None) -> jax.Array:
    """_standard_gamma(Tensor self, Generator? generator=None) -> Tensor; at least the smallest normal number."""
    wide = compute_dtype(ctx.dtype)
    sample = jax.random.gamma(_jax_key(ctx), cast(alpha, wide), ctx.shape, wide)
    return cast(lax.max(sample, lax.full_like(sample, torch.finfo(torch_dtype(ctx.dtype)).tiny)), ctx.dtype)


@op("_standard_gamma_grad")
def standard_gamma_grad(ctx: Context, alpha: jax.Array, sample: jax.Array) -> jax.Array:
    """_standard_gamma_grad(Tensor self, Tensor output) -> Tensor."""
    wide = compute_dtype(ctx.dtype)
    return cast(lax.random_gamma_grad(cast(alpha, wide), cast(sample, wide)), ctx.dtype)


@op("_sample_dirichlet", random=True)
def sample_dirichlet(ctx: Context, alpha: jax.Array, generator: Any = None) -> jax.Array:
    """_sample_dirichlet(Tensor self, Generator? generator=None) -> Tensor."""
    wide = compute_dtype(ctx.dtype)
    logs = jax.random.loggamma(_jax_key(ctx), cast(alpha, wide), ctx.shape, wide)
    last = logs.ndim - 1
    parts = lax.exp(logs - lax.expand_dims(lax.reduce_max(logs, (last,)), (last,)))
    return cast(parts / lax.expand_dims(lax.reduce_sum(parts, (last,)), (last,)), ctx.dtype)
