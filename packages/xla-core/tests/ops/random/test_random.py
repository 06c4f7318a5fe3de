"""Random operations: the generator against published vectors, distributions by Kolmogorov-Smirnov, ranges and streams."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.extend.random import threefry_2x32

import xla_core.ops.random.sampling  # noqa: F401
from xla_core.ops.random.random import before_of_two_floats
from xla_core.ops.random.threefry import bits, threefry2x32
from xla_core.ops.table import TABLE, Context
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
COUNT = 20_000
BLANK = torch.empty(COUNT)


def draw(func: torch._ops.OpOverload, *args: Any, seed: int = 1, like: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
    """One result of a random row under `seed`; `like` gives the inferred shape and dtype when torch would not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, on ranges that its dtypes hardly hold
        expected = func(*args, **kwargs) if like is None else like
    return lower_once(func, expected, *args, seed=seed, **kwargs)[0]


def distance(sample: torch.Tensor, cdf: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The Kolmogorov-Smirnov statistic times the root of the count: below 1.95 for 999 of 1000 fair samples."""
    ordered = sample.double().flatten().sort().values
    count = ordered.numel()
    expected = cdf(ordered)
    steps = torch.arange(count, dtype=torch.float64) / count
    return float(torch.maximum((expected - steps).abs(), (expected - steps - 1 / count).abs()).max()) * math.sqrt(count)


def normal_cdf(mean: float, std: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: 0.5 * torch.special.erfc((mean - x) / (std * math.sqrt(2)))


@pytest.mark.parametrize(
    ("word", "expected"), [(0, (0x6B200159, 0x99BA4EFE)), (0xFFFFFFFF, (0x1CB996FC, 0xBB002BE7))], ids=["zeros", "ones"]
)
def test_threefry_vectors(word: int, expected: tuple[int, int]) -> None:
    pair = (jax.numpy.uint32(word), jax.numpy.uint32(word))
    assert tuple(int(value) for value in threefry2x32(pair, pair)) == expected


def test_bits_agree_with_jax_threefry() -> None:
    key, counter = np.array([3, 9], np.uint32), np.arange(6, dtype=np.uint32)
    low, high = bits(jax.numpy.asarray(key), (2, 3))
    expected = threefry_2x32(key, np.concatenate([counter, np.zeros(6, np.uint32)]))
    assert np.concatenate([low.ravel(), high.ravel()]).tolist() == expected.tolist()


def test_bits_do_not_depend_on_shape_but_on_stream() -> None:
    key = jax.numpy.asarray(np.array([3, 9], np.uint32))
    assert bits(key, (2, 3))[0].ravel().tolist() == bits(key, (6,))[0].tolist()
    assert bits(key, (6,), stream=1)[0].tolist() != bits(key, (6,))[0].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform(dtype: torch.dtype) -> None:
    sample = draw(aten.rand.default, [COUNT], dtype=dtype)
    assert distance(sample, lambda x: x) < 1.95
    sample = draw(aten.uniform.default, BLANK.to(dtype), -3.0, 2.0)
    assert distance(sample, lambda x: (x + 3) / 5) < 1.95


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 0.0), (5.0, 5.0), (1.0, 1.0078125)])
def test_uniform_stays_below_its_end(dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    low, high = bounds
    sample = draw(aten.uniform.default, BLANK.to(dtype), low, high).double()
    assert sample.min() >= low
    assert sample.max() < high or low == high == float(sample.max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_normal(dtype: torch.dtype) -> None:
    assert distance(draw(aten.randn.default, [COUNT], dtype=dtype), normal_cdf(0, 1)) < 1.95
    assert distance(draw(aten.normal_functional.default, BLANK.to(dtype), 2.0, 3.0), normal_cdf(2, 3)) < 1.95


def test_normal_tensor_parameters() -> None:
    mean, std = torch.linspace(-100, 100, COUNT), torch.linspace(0.5, 4, COUNT)
    sample = draw(aten.normal.Tensor_Tensor, mean, std)
    assert distance((sample - mean) / std, normal_cdf(0, 1)) < 1.95
    sample = draw(aten.normal.float_Tensor, 1.0, std)
    assert distance((sample - 1) / std, normal_cdf(0, 1)) < 1.95
    assert distance(draw(aten.normal.Tensor_float, mean) - mean, normal_cdf(0, 1)) < 1.95
    assert distance(draw(aten.normal.float_float, 1.0, 2.0, [COUNT]), normal_cdf(1, 2)) < 1.95


def test_complex_normal() -> None:
    sample = draw(aten.randn.default, [COUNT], dtype=torch.complex64)
    for part in (sample.real, sample.imag):
        assert distance(part, normal_cdf(0, math.sqrt(0.5))) < 1.95
    assert abs(float((sample.real * sample.imag).mean())) < 0.02


@pytest.mark.parametrize(
    ("func", "parameters", "cdf"),
    [
        (aten.exponential.default, (2.0,), lambda x: 1 - torch.exp(-2 * x)),
        (aten.cauchy.default, (1.0, 2.0), lambda x: torch.atan((x - 1) / 2) / math.pi + 0.5),
        (aten.log_normal.default, (0.5, 0.25), lambda x: normal_cdf(0.5, 0.25)(x.log())),
    ],
    ids=["exponential", "cauchy", "log_normal"],
)
def test_continuous(func: torch._ops.OpOverload, parameters: tuple[float, ...], cdf: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert distance(draw(func, BLANK, *parameters), cdf) < 1.95
    assert distance(draw(func, BLANK.double(), *parameters, seed=2), cdf) < 1.95


def test_exponential_is_positive() -> None:
    assert draw(aten.exponential.default, torch.empty(300_000)).min() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_geometric(dtype: torch.dtype) -> None:
    sample = draw(aten.geometric.default, BLANK.to(dtype), 0.3)
    shares = torch.bincount(sample.long(), minlength=6)[1:6] / COUNT
    expected = 0.3 * 0.7 ** torch.arange(5)
    torch.testing.assert_close(shares, expected, atol=0.015, rtol=0)
    assert sample.min() == 1


def test_bernoulli() -> None:
    probability = torch.tensor([0.0, 0.25, 0.9, 1.0]).repeat_interleave(COUNT // 4)
    for sample in (
        draw(aten.bernoulli.default, probability),
        draw(aten.bernoulli.Tensor, BLANK.to(torch.int64), probability).float(),
    ):
        shares = sample.reshape(4, -1).mean(1)
        assert shares[0] == 0 and shares[3] == 1
        torch.testing.assert_close(shares, torch.tensor([0.0, 0.25, 0.9, 1.0]), atol=0.03, rtol=0)
    assert abs(float(draw(aten.bernoulli.p, BLANK, 0.3).mean()) - 0.3) < 0.02


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_dropout(dtype: torch.dtype) -> None:
    x = torch.linspace(1, 2, COUNT).to(dtype)
    kept, mask = lower_once(aten.native_dropout.default, aten.native_dropout(x, 0.25, True), x, 0.25, True, seed=3)
    assert abs(float(mask.double().mean()) - 0.75) < 0.02
    torch.testing.assert_close(kept, x * mask / 0.75)
    check_lowering(aten.native_dropout.default, x, 0.25, False)
    check_lowering(aten.native_dropout.default, x, 1.0, True)
    check_lowering(aten.native_dropout_backward.default, x, mask, 1 / 0.75)
    of_tpus = lower_once(aten.native_dropout.default, aten.native_dropout(x, 0.25, True), x, 0.25, True, seed=3, platform="tpu")
    assert torch.equal(mask, of_tpus[1]), "the same elements stay on every platform"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32])
def test_randint(dtype: torch.dtype) -> None:
    low = 0 if dtype is torch.uint8 else -5
    draws = (
        draw(aten.randint.low, low, low + 12, [COUNT], dtype=dtype),
        draw(getattr(aten.random, "from"), BLANK.to(dtype), low, low + 12),
    )
    for sample in draws:
        shares = torch.bincount(sample.long() - low, minlength=12) / COUNT
        assert shares.numel() == 12
        torch.testing.assert_close(shares, torch.full((12,), 1 / 12), atol=0.012, rtol=0)


@pytest.mark.parametrize("span", [1, 2, 65_536, 65_537, 2**31, 2**40, 2**63 - 1])
def test_randint_spans(span: int) -> None:
    sample = draw(aten.randint.default, span, [COUNT])
    assert sample.min() >= 0 and sample.max() < span
    if span > 2:
        assert distance(sample.double() / span, lambda x: x) < 1.95


def test_random_without_bounds() -> None:
    assert set(draw(aten.random.default, BLANK.bool()).tolist()) == {False, True}
    for dtype in (torch.uint8, torch.int8, torch.int64):
        sample = draw(aten.random.default, BLANK.to(dtype))
        assert sample.min() >= 0
        assert distance(sample.double() / torch.iinfo(dtype).max, lambda x: x) < 1.95
    whole = draw(aten.random.default, BLANK)
    assert torch.equal(whole, whole.round()) and 2**23 < float(whole.max()) <= 2**24
    lowest = -(2**63)
    full_range = draw(getattr(aten.random, "from"), BLANK.long(), lowest, None)
    assert abs(float((full_range < 0).double().mean()) - 0.5) < 0.02


def test_randint_never_rounds_up_to_its_end() -> None:
    assert float(draw(aten.randint.default, 2049, [COUNT], dtype=torch.bfloat16).max()) <= 2048
    assert float(draw(aten.random.to, BLANK.half(), 2047).max()) < 2047


def test_randint_like() -> None:
    blank = BLANK.to(torch.int32)
    assert set(draw(aten.randint_like.default, blank, 3).tolist()) == {0, 1, 2}
    assert set(draw(aten.randint_like.low_dtype, blank, 3, 5).tolist()) == {3, 4}
    assert set(draw(aten.randint_like.Tensor, blank, torch.tensor(3)).tolist()) == {0, 1, 2}


def test_randperm() -> None:
    assert draw(aten.randperm.default, 500).sort().values.tolist() == list(range(500))
    assert draw(aten.randperm.default, 0).tolist() == []
    inferred = (jax.ShapeDtypeStruct((4,), np.int32),)
    seeds = np.stack([np.arange(4800), np.full(4800, 7)], axis=1).astype(np.uint32)
    with jax.enable_x64(True):
        orders = jax.vmap(lambda seed: TABLE["aten::randperm"].lower(Context(inferred, seed), 4))(jax.numpy.asarray(seeds))
    counts = np.unique(np.asarray(orders), axis=0, return_counts=True)[1]
    assert counts.shape == (24,) and counts.min() > 140 and counts.max() < 265


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_shares(replacement: bool) -> None:
    weights = torch.tensor([1.0, 0.0, 3.0, 0.0, 4.0, 0.0]).expand(COUNT // 2, 6)
    sample = draw(aten.multinomial.default, weights, 1, replacement)
    shares = torch.bincount(sample.flatten(), minlength=6) / (COUNT // 2)
    torch.testing.assert_close(shares, torch.tensor([1.0, 0, 3, 0, 4, 0]) / 8, atol=0.02, rtol=0)
    assert shares[[1, 3, 5]].tolist() == [0.0, 0.0, 0.0]


def test_multinomial_draws() -> None:
    weights = torch.tensor([0.1, 0.0, 0.5, 0.2, 0.2])
    assert sorted(draw(aten.multinomial.default, weights, 4).tolist()) == [0, 2, 3, 4]
    many = draw(aten.multinomial.default, weights, COUNT, True)
    torch.testing.assert_close(torch.bincount(many, minlength=5) / COUNT, weights, atol=0.015, rtol=0)
    pairs = draw(aten.multinomial.default, torch.ones(COUNT, 3), 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert draw(aten.multinomial.default, weights.double(), 3, seed=5).shape == (3,)


def test_rrelu_with_noise() -> None:
    x = torch.linspace(-2, 1, COUNT)
    out, noise = lower_once(aten.rrelu_with_noise_functional.default, (x, x), x, torch.zeros_like(x), 0.1, 0.3, True, seed=4)
    assert torch.equal(noise[x > 0], torch.ones_like(x[x > 0]))
    assert distance(noise[x <= 0], lambda r: (r - 0.1) / 0.2) < 1.95
    torch.testing.assert_close(out, x * noise)
    check_lowering(aten.rrelu_with_noise_functional.default, x, torch.zeros_like(x), 0.1, 0.3, False)


@pytest.mark.parametrize("rate", [0.5, 4.0, 60.0])
def test_poisson(rate: float) -> None:
    sample = draw(aten.poisson.default, torch.full((COUNT,), rate))
    assert abs(float(sample.mean()) - rate) < 5 * math.sqrt(rate / COUNT)
    assert abs(float(sample.var()) / rate - 1) < 0.06


def test_binomial_gamma_dirichlet() -> None:
    count, prob = torch.full((COUNT,), 12.0), torch.full((COUNT,), 0.3)
    sample = draw(aten.binomial.default, count, prob)
    assert abs(float(sample.mean()) - 3.6) < 0.06 and abs(float(sample.var()) - 2.52) < 0.15
    gamma = draw(aten._standard_gamma.default, torch.full((COUNT,), 2.5))
    assert distance(gamma, lambda x: torch.special.gammainc(torch.tensor(2.5, dtype=torch.float64), x)) < 1.95
    parts = draw(aten._sample_dirichlet.default, torch.tensor([1.0, 2.0, 5.0]).expand(COUNT, 3))
    torch.testing.assert_close(parts.sum(1), torch.ones(COUNT))
    torch.testing.assert_close(parts.mean(0), torch.tensor([1.0, 2.0, 5.0]) / 8, atol=0.01, rtol=0)


def test_gamma_gradient() -> None:
    alpha, sample = torch.tensor([0.5, 2.0, 30.0]), torch.tensor([0.3, 1.5, 28.0])
    check_lowering(aten._standard_gamma_grad.default, alpha, sample, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("func", [aten.rand.default, aten.randn.default])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_streams(func: torch._ops.OpOverload, dtype: torch.dtype) -> None:
    first, again, other = (draw(func, [64, 3], seed=seed, dtype=dtype) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert (first == other).double().mean() < 0.1


def test_neighbouring_keys_and_positions_are_uncorrelated() -> None:
    samples = torch.stack([draw(aten.randn.default, [COUNT], seed=seed) for seed in (10, 11, 12)])
    matrix = torch.corrcoef(torch.cat([samples[:, 1:], samples[:, :-1]]))
    assert (matrix - torch.eye(6)).abs().max() < 0.04


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 1, 2)])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert draw(aten.rand.default, list(shape)).shape == shape
    assert draw(aten.randint.default, 5, list(shape)).shape == shape
    assert draw(aten.randn_like.default, torch.empty(shape)).shape == shape
    assert draw(aten.bernoulli.p, torch.empty(shape), 0.5).shape == shape


def test_all_rows_take_a_key() -> None:
    for name in ("rand", "randn", "uniform", "normal_functional", "bernoulli.p", "native_dropout", "randperm", "multinomial"):
        assert TABLE[f"aten::{name}"].random


def test_uniform_complex_numbers_have_uniform_parts() -> None:
    sample = torch.view_as_real(draw(aten.uniform.default, BLANK.to(torch.complex64), -3.0, 2.0))
    for part in sample.unbind(-1):
        assert distance(part.contiguous(), lambda x: (x + 3) / 5) < 1.95
    assert abs(float(torch.corrcoef(sample.t())[0, 1])) < 0.02


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 0.0), (1.0, 1.0 + 2.0**-47), (-2e20, 1e20)])
def test_the_number_before_in_sums_of_two_float32(low: float, high: float) -> None:
    """What stands for nextafter of float64 on TPUs."""
    with jax.enable_x64(True):
        before = float(before_of_two_floats(jnp.asarray(high, np.float64), jnp.asarray(low, np.float64)))
    assert low <= before < high and high - before <= max(abs(high) * 2.0**-45, 2.0**-99)
