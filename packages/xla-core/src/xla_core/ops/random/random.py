"""Random tensors: uniform, normal and the other distributions that are functions of one uniform number; dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.base.errors import internal
from xla_core.ops.checks import Fault, not_a_share
from xla_core.ops.facts import HALF
from xla_core.ops.promote import Number, as_array, cast, compute_dtype, expand, full, is_complex, is_float, real_dtype
from xla_core.ops.random.threefry import open_unit, standard_normal, unit
from xla_core.ops.table import Context, op

Value = Number | jax.Array


def key_of(ctx: Context) -> jax.Array:
    """The (2,) uint32 key of this random operation."""
    internal(ctx.seed is not None, lambda: "a random operation was lowered without a key")
    return jax.numpy.asarray(ctx.seed)


def _spread(value: Value, ctx: Context, dtype: np.dtype) -> jax.Array:
    """A number, 0-d array or tensor parameter over the whole result."""
    return expand(as_array(value, dtype), ctx.shape)


def _between(sample: jax.Array, low: jax.Array, high: jax.Array, dtype: np.dtype) -> jax.Array:
    """low + sample * (high - low) in `dtype`, kept below `high` where rounding would reach it."""
    value = cast(sample * (high - low) + low, dtype)
    rounded_low, rounded_high = cast(low, dtype), cast(high, dtype)
    return lax.select(lax.lt(rounded_low, rounded_high), lax.min(value, _towards(rounded_high, rounded_low)), value)


def _towards(high: jax.Array, low: jax.Array) -> jax.Array:
    """The number before `high`."""
    if high.dtype != np.float64:
        return lax.nextafter(high, low)
    before: jax.Array = lax.platform_dependent(high, low, tpu=before_of_two_floats, default=lax.nextafter)
    return before


def before_of_two_floats(high: jax.Array, low: jax.Array) -> jax.Array:
    """A number before `high`, not below `low`, for float64 as TPUs have it: the sum of two float32, whose bits cannot be counted down."""
    step = lax.max(lax.mul(lax.abs(high), lax.full_like(high, 2.0**-46)), lax.full_like(high, 2.0**-100))
    return lax.max(lax.sub(high, step), low)


@op("rand", "rand.generator", random=True)
@op("rand_like", "rand_like.generator", random=True, keeps_sharding=True)
def rand(ctx: Context, *_: Any, **__: Any) -> jax.Array:
    """rand(SymInt[] size, *, ScalarType? dtype=None) -> Tensor; in [0, 1)."""
    if is_float(ctx.dtype):
        return cast(unit(key_of(ctx), ctx.shape, ctx.dtype), ctx.dtype)
    part = np.dtype(np.float32 if ctx.dtype == np.complex64 else np.float64)
    return lax.complex(*(unit(key_of(ctx), ctx.shape, part, stream) for stream in (0, 1)))


@op("uniform", scalars=("from", "to"), random=True)
def uniform(ctx: Context, _: jax.Array, *bounds: Value, **named: Any) -> jax.Array:
    """uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor; in [from, to)."""
    given = dict(zip(("from", "to"), bounds, strict=False)) | named
    part = real_dtype(ctx.dtype)
    wide = compute_dtype(part)
    low, high = (_spread(given.get(name, default), ctx, wide) for name, default in (("from", 0.0), ("to", 1.0)))
    parts = (
        _between(unit(key_of(ctx), ctx.shape, part, stream), low, high, part) for stream in ((0, 1) if is_complex(ctx.dtype) else (0,))
    )
    return lax.complex(*parts) if is_complex(ctx.dtype) else next(parts)


@op("randn", "randn.generator", random=True)
@op("randn_like", "randn_like.generator", random=True, keeps_sharding=True)
def randn(ctx: Context, *_: Any, **__: Any) -> jax.Array:
    """randn(SymInt[] size, *, ScalarType? dtype=None) -> Tensor."""
    return standard_normal(key_of(ctx), ctx.shape, ctx.dtype)


def _normal(ctx: Context, mean: Value, std: Value) -> jax.Array:
    wide = compute_dtype(ctx.dtype)
    if not isinstance(std, Number):
        ctx.check(Fault.DEVIATION, lax.lt(std, lax.full_like(std, 0)))
    sample = cast(standard_normal(key_of(ctx), ctx.shape, wide), wide)
    return cast(sample * _spread(std, ctx, wide) + _spread(mean, ctx, wide), ctx.dtype)


@op("normal_functional", scalars=("mean", "std"), random=True)
def normal_over(ctx: Context, _: jax.Array, mean: Value = 0.0, std: Value = 1.0, *, generator: Any = None) -> jax.Array:
    """normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor."""
    return _normal(ctx, mean, std)


@op("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", scalars=("mean", "std"), random=True)
def normal(ctx: Context, mean: Value, std: Value = 1.0, *, generator: Any = None) -> jax.Array:
    """normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor."""
    return _normal(ctx, mean, std)


@op("normal.float_float", scalars=("mean", "std"), random=True)
def normal_of_size(ctx: Context, mean: Value, std: Value, size: Any, **_: Any) -> jax.Array:
    """normal.float_float(float mean, float std, SymInt[] size, *, ScalarType? dtype=None) -> Tensor."""
    return _normal(ctx, mean, std)


def _happens(ctx: Context, probability: jax.Array) -> jax.Array:
    """True with the given probability (float32 or float64, of the result's shape)."""
    return lax.lt(unit(key_of(ctx), probability.shape, probability.dtype), probability)


def _probability(value: Value, ctx: Context) -> jax.Array:
    array = as_array(value, np.dtype(np.float32)) if isinstance(value, Number) else value
    wide = compute_dtype(array.dtype) if is_float(array.dtype) else np.dtype(np.float32)
    return _spread(array, ctx, wide)


@op("bernoulli", random=True)
def bernoulli(ctx: Context, probability: jax.Array, *, generator: Any = None) -> jax.Array:
    """bernoulli(Tensor self, *, Generator? generator=None) -> Tensor; `self` holds the probabilities."""
    ctx.check(Fault.PROBABILITY, not_a_share(probability))
    return cast(_happens(ctx, _probability(probability, ctx)), ctx.dtype)


@op("bernoulli.p", "bernoulli.Tensor", scalars=("p",), random=True)
def bernoulli_like(ctx: Context, _: jax.Array, p: Value, *, generator: Any = None) -> jax.Array:
    """bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor."""
    if not isinstance(p, Number):
        ctx.check(Fault.PROBABILITY, not_a_share(p))
    return cast(_happens(ctx, _probability(p, ctx)), ctx.dtype)


@op("native_dropout", scalars=("p",), random=True)
def native_dropout(ctx: Context, x: jax.Array, p: Value, train: bool | None) -> tuple[jax.Array, jax.Array]:
    """native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor); the result and the mask of what stays."""
    if train is False:
        return cast(x, ctx.dtype), full(True, ctx.shape, np.dtype(bool))
    wide = compute_dtype(ctx.dtype)
    stay = 1 - as_array(p, np.dtype(np.float64) if wide == np.float64 else np.dtype(np.float32))
    scale = lax.select(lax.eq(stay, lax.full_like(stay, 0)), lax.full_like(stay, 0), 1 / stay)
    mask = _happens(ctx, expand(stay, ctx.shape))
    if ctx.platform in ("tpu", "cpu"):
        # Else XLA computes the cipher within the products around it, and once more for the gradient. By its own figures for a layer of
        # BERT on a v5e, that takes longer than to keep the mask, as torch does, and two and a half times as long to compile; on the CPU
        # a GPT with dropout compiles in 0.8 of the time.
        mask = lax.optimization_barrier(mask)
    return _masked(x, mask, cast(scale, wide), ctx.dtype), mask


def _masked(x: jax.Array, mask: jax.Array, scale: Value, dtype: np.dtype) -> jax.Array:
    """x * mask * scale: not a selection, so that NaN and infinities under the mask show up as in torch."""
    wide = cast(x, compute_dtype(dtype))
    return cast(wide * (cast(mask, wide.dtype) * expand(as_array(scale, wide.dtype), wide.shape)), dtype)


@op("native_dropout_backward", "_masked_scale", scalars=("scale",))
def native_dropout_backward(ctx: Context, grad: jax.Array, mask: jax.Array, scale: Value) -> jax.Array:
    """native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor."""
    return _masked(grad, mask, scale, ctx.dtype)


def _rrelu_results(x: torch.Tensor, noise: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Row-major, which torch's own says of the CPU only."""
    return torch.empty_like(x, memory_format=torch.contiguous_format), torch.empty_like(noise)


@op("rrelu_with_noise_functional", scalars=("lower", "upper"), random=True, shapes=_rrelu_results, beyond_cpu=HALF)
def rrelu_with_noise(
    ctx: Context,
    x: jax.Array,
    noise: jax.Array,
    lower: Value = 0.125,
    upper: Value = 1.0 / 3.0,
    training: bool = False,
    generator: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """rrelu_with_noise_functional(Tensor self, Tensor noise, Scalar lower, Scalar upper, bool training) -> (Tensor, Tensor)."""
    wide = compute_dtype(ctx.dtype)
    low, high, wide_x = _spread(lower, ctx, wide), _spread(upper, ctx, wide), cast(x, wide)
    negative = lax.le(wide_x, lax.full_like(wide_x, 0))
    if not training:
        return cast(lax.select(lax.lt(wide_x, lax.full_like(wide_x, 0)), wide_x * ((low + high) / 2), wide_x), ctx.dtype), noise
    slope = _between(unit(key_of(ctx), ctx.shape, wide), low, high, wide)
    slope = lax.select(negative, slope, lax.full_like(slope, 1))
    return cast(wide_x * slope, ctx.dtype), cast(slope, noise.dtype)


def _sampled_in(ctx: Context) -> np.dtype:
    """The dtype a continuous sample is made in: float64 for integers that float32 cannot count to."""
    return compute_dtype(ctx.dtype) if is_float(ctx.dtype) else np.dtype(np.float64)


def exponential_sample(seed: jax.Array, shape: tuple[int, ...], dtype: np.dtype, stream: int = 0) -> jax.Array:
    """Exponential numbers of rate 1, never 0."""
    return lax.neg(lax.log(open_unit(seed, shape, dtype, stream)))


@op("exponential", scalars=("lambd",), random=True)
def exponential(ctx: Context, _: jax.Array, lambd: Value = 1.0, *, generator: Any = None) -> jax.Array:
    """exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor."""
    wide = _sampled_in(ctx)
    return cast(exponential_sample(key_of(ctx), ctx.shape, wide) / _spread(lambd, ctx, wide), ctx.dtype)


@op("geometric", scalars=("p",), random=True)
def geometric(ctx: Context, _: jax.Array, p: Value, *, generator: Any = None) -> jax.Array:
    """geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor; the trial of the first success, from 1 on."""
    wide = _sampled_in(ctx)
    trials = lax.ceil(-exponential_sample(key_of(ctx), ctx.shape, wide) / lax.log1p(-_spread(p, ctx, wide)))
    return cast(lax.max(trials, lax.full_like(trials, 1)), ctx.dtype)


def _cauchy(seed: jax.Array, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    return lax.tan((open_unit(seed, shape, dtype) - 0.5) * math.pi)


def _location_scale(name: str, first: str, second: str, sample: Callable[..., jax.Array], after: Callable[[jax.Array], jax.Array]) -> None:
    """Register a distribution that is `after(location + scale * sample)`."""
    defaults = {"median": 0.0, "sigma": 1.0, "mean": 1.0, "std": 2.0}

    @op(name, scalars=(first, second), random=True)
    def lower(ctx: Context, _: jax.Array, *parameters: Value, generator: Any = None, **named: Value) -> jax.Array:
        given = dict(zip((first, second), parameters, strict=False)) | named
        wide = _sampled_in(ctx)
        location, scale = (_spread(given.get(key, defaults[key]), ctx, wide) for key in (first, second))
        return cast(after(location + scale * sample(key_of(ctx), ctx.shape, wide)), ctx.dtype)

    lower.__doc__ = f"{name}(Tensor self, float {first}, float {second}, *, Generator? generator=None) -> Tensor."


_location_scale("cauchy", "median", "sigma", _cauchy, lambda x: x)
_location_scale("log_normal", "mean", "std", standard_normal, lax.exp)
