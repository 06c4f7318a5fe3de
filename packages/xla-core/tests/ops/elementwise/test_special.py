"""Special functions, Bessel and Airy functions and orthogonal polynomials against CPU torch."""

from __future__ import annotations

import math

import pytest
import torch

import xla_core.ops.elementwise.bessel as bessel
import xla_core.ops.elementwise.polynomials as polynomials
import xla_core.ops.elementwise.special as special
from xla_core.testing.lowering import check_lowering

aten = torch.ops.aten
POINTS = torch.cat([torch.tensor([0.0, math.nan, 1e-6, 24.9, 25.1, 100.0, 1000.0]), torch.linspace(-30, 30, 241)])
INFINITE = torch.tensor([math.inf, -math.inf])


@pytest.mark.parametrize("name", sorted(special.FUNCTIONS))
def test_functions(name: str) -> None:
    func = getattr(aten, name).default
    check_lowering(func, torch.cat([POINTS, INFINITE]).double(), rtol=1e-10, atol=1e-10)
    check_lowering(func, torch.cat([POINTS, INFINITE]), rtol=3e-6, atol=1e-6)
    check_lowering(func, torch.arange(-3, 9))


@pytest.mark.parametrize("name", sorted(bessel.FUNCTIONS))
def test_bessel(name: str) -> None:
    func = getattr(aten, name).default
    # torch's rational approximations are off by up to 1e-6 around 5: the tables below are the sharp test.
    check_lowering(func, POINTS.double(), rtol=1e-9, atol=2e-6)
    check_lowering(func, POINTS[:-1], rtol=1e-5, atol=2e-5)
    check_lowering(func, torch.arange(-2, 7).reshape(3, 3), rtol=1e-5, atol=2e-6)
    check_lowering(func, torch.tensor(2.5))
    check_lowering(func, torch.empty(0, 2))


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("special_bessel_j0", 15.0, -0.01422447282678077),
        ("special_bessel_j0", 5.25, -0.09308098963931788),
        ("special_bessel_j1", 10.0, 0.04347274616886144),
        ("special_bessel_y0", 3.0, 0.3768500100127904),
        ("special_bessel_y1", 3.0, 0.3246744247918),
        ("special_modified_bessel_k0", 1.0, 0.42102443824070834),
        ("special_airy_ai", 0.0, 0.3550280538878172),
        ("special_airy_ai", -4.0, -0.07026553294928951),
        ("special_airy_ai", 10.0, 1.1047532552898686e-10),
    ],
)
def test_bessel_against_tables(name: str, argument: float, value: float) -> None:
    func = bessel.FUNCTIONS[name]
    with special.jax.enable_x64(True):
        got = float(func(special.jax.numpy.asarray(argument, dtype="float64")))
    assert got == pytest.approx(value, rel=2e-13)


@pytest.mark.parametrize("name", sorted(polynomials.FAMILIES))
def test_polynomials(name: str) -> None:
    x = torch.linspace(-2, 2, 17, dtype=torch.float64)[:, None]
    degrees = torch.tensor([-1.0, 0.0, 1.0, 2.0, 3.0, 7.0, 12.0, 30.0], dtype=torch.float64)
    op = getattr(aten, f"special_{name}")
    check_lowering(op.default, x, degrees, rtol=1e-9, atol=1e-9)
    check_lowering(op.default, x.float(), degrees[:6].float(), rtol=1e-4, atol=1e-4)
    check_lowering(op.n_scalar, x, 5)
    check_lowering(op.x_scalar, 0.3, degrees)


def test_hermite_beyond_its_range() -> None:
    check_lowering(aten.special_hermite_polynomial_h.default, torch.tensor([0.5, 0.5]), torch.tensor([128.0, 129.0]))


@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_polygamma(n: int) -> None:
    x = torch.tensor([0.3, 1.7, -0.4, 5.0, -2.3, -8.6, -40.3, 1e-3, 30.0, math.inf, math.nan])
    check_lowering(aten.polygamma.default, n, x.double(), rtol=1e-8, atol=1e-8)
    check_lowering(aten.polygamma.default, n, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", [1, 2, 5])
def test_mvlgamma(p: int) -> None:
    check_lowering(aten.mvlgamma.default, torch.tensor([2.5, 3.0, 10.0, 100.0]), p)
    check_lowering(aten.mvlgamma.default, torch.tensor([3, 4]), p)
