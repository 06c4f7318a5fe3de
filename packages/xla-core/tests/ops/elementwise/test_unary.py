"""Functions of one tensor against CPU torch: ordinary, special and degenerate values."""

from __future__ import annotations

import math

import pytest
import torch

import xla_core.ops.elementwise.unary as unary
from xla_core.ops.table import TABLE
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, -3.7, 17.25, -40.0, 88.0, 1e-3, 1e6, -1e6, math.inf, -math.inf, math.nan]
NAMES = sorted((set(unary.KERNELS) - {"clone"}) | set(unary.PREDICATES))
COMPLEX = (
    "abs acos acosh angle asin asinh atan atanh cos cosh exp expm1 isinf isnan log log10 log2 "
    "neg reciprocal rsqrt sgn sigmoid sin sinh sqrt tan tanh"
)
WHOLE = torch.tensor([[0, 1, -1, 7], [-128, 127, 50, -3]])


def overload(name: str) -> torch._ops.OpOverload:
    return getattr(aten, name).default


@pytest.mark.parametrize("name", NAMES)
def test_special_values(name: str) -> None:
    check_lowering(overload(name), torch.tensor(SPECIAL), rtol=2e-6, atol=2e-6)
    check_lowering(overload(name), torch.tensor(SPECIAL, dtype=torch.float64), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name: str) -> None:
    check_lowering(overload(name), torch.tensor(SPECIAL, dtype=torch.bfloat16))
    check_lowering(overload(name), torch.linspace(-3, 3, 11, dtype=torch.float16))


@pytest.mark.parametrize("name", ["neg", "abs", "ceil", "floor", "round", "trunc", "frac", "sqrt", "sin", "asinh", "expm1", "reciprocal"])
def test_signs_of_zero(name: str) -> None:
    values = torch.tensor([0.0, -0.0, 0.3, -0.3, math.inf, -math.inf])
    (got,) = lower_once(overload(name), overload(name)(values), values)
    got, expected = got.nan_to_num(1.0), overload(name)(values).nan_to_num(1.0)
    assert torch.signbit(got).tolist() == torch.signbit(expected).tolist()


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"frac"}))
def test_integers(name: str) -> None:
    check_lowering(overload(name), WHOLE, rtol=2e-6, atol=2e-6)
    check_lowering(overload(name), WHOLE.to(torch.int8), rtol=2e-6, atol=2e-6)
    check_lowering(overload(name), WHOLE.to(torch.uint8), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"abs", "ceil", "floor", "frac", "neg", "round", "trunc"}))
def test_bool(name: str) -> None:
    check_lowering(overload(name), torch.tensor([True, False]), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", COMPLEX.split())
def test_complex(name: str) -> None:
    real, imag = torch.meshgrid(torch.tensor([-2.0, -0.3, 0.4, 1.7]), torch.tensor([-1.5, 0.2, 3.0]), indexing="ij")
    check_lowering(overload(name), torch.complex(real, imag))
    check_lowering(overload(name), torch.complex(real.double(), imag.double()))


@pytest.mark.parametrize("name", ["cos", "cosh", "expm1", "sin", "sinh", "tan", "tanh"])
def test_complex_near_zeros_and_poles(name: str) -> None:
    near = torch.tensor([-0.02, -1e-3, 1e-4, 0.016, 0.3, 7.5]).repeat(2)
    turns = torch.arange(-6, 6) * (math.pi / 2) + near
    values = torch.cat([torch.complex(near[:, None], turns[None]).flatten(), torch.complex(turns[:, None], near[None]).flatten()])
    (got,) = lower_once(overload(name), overload(name)(values), values)
    torch.testing.assert_close(got.to(torch.complex128), overload(name)(values.to(torch.complex128)), rtol=5e-7, atol=0)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (2, 3, 1)])
def test_shapes(shape: tuple[int, ...]) -> None:
    check_lowering(aten.sqrt.default, torch.full(shape, 2.0))
    check_lowering(aten.isnan.default, torch.full(shape, 2.0))


@pytest.mark.parametrize("decimals", [0, 1, 3, -1, -2])
def test_round_decimals(decimals: int) -> None:
    values = torch.tensor([0.15, 0.25, -1234.5678, 149.9, 150.0, 250.0, math.inf, math.nan])
    check_lowering(aten.round.decimals, values, decimals=decimals)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [None, 0.1])
def test_logit(dtype: torch.dtype, eps: float | None) -> None:
    values = torch.tensor([0.0, 0.05, 0.3, 0.95, 1.0, 1.2, -0.1, math.nan], dtype=dtype)
    check_lowering(aten.logit.default, values, eps)
    check_lowering(aten.logit_backward.default, torch.linspace(-1, 1, 8, dtype=dtype), values, eps)
    check_lowering(aten.logit_backward.default, torch.linspace(-1, 1, 16, dtype=dtype).reshape(2, 8), values, eps)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64])
@pytest.mark.parametrize("replacements", [(), (1.5,), (None, 2.0, -3.0)])
def test_nan_to_num(dtype: torch.dtype, replacements: tuple[float | None, ...]) -> None:
    values = torch.tensor([0.5, math.nan, math.inf, -math.inf]) if dtype.is_floating_point else torch.tensor([1, 2, 3, 4])
    if dtype.is_complex:
        values = torch.complex(torch.tensor([math.nan, 1.0, -math.inf]), torch.tensor([2.0, math.inf, math.nan]))
    check_lowering(aten.nan_to_num.default, values.to(dtype), *replacements)


def test_frexp() -> None:
    check_lowering(aten.frexp.Tensor, torch.tensor([0.0, -0.0, 1.0, 0.75, -12.5, 1e30, 3e-30]))
    check_lowering(aten.frexp.Tensor, torch.tensor([0.1, -1e200], dtype=torch.float64))


def test_every_kernel_has_a_row() -> None:
    assert {f"aten::{name}" for name in NAMES} <= set(TABLE)
