"""Functions of two and three tensors against CPU torch: arithmetic, comparison, bits, selection."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import xla_core.ops.elementwise.arithmetic
import xla_core.ops.elementwise.binary as binary
import xla_core.ops.elementwise.bitwise
import xla_core.ops.elementwise.compare
import xla_core.ops.elementwise.ternary  # noqa: F401
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
Overload = torch._ops.OpOverload
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 2.5, 7.3, -7.3, 1e-3, 1e4, math.inf, -math.inf, math.nan]
WHOLE = [1, -1, 2, -2, 3, 7, -7, 100, 127, 5]


def pairs(values: list[float], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    left, right = zip(*itertools.product(values, values), strict=True)
    return torch.tensor(left, dtype=torch.float64).to(dtype), torch.tensor(right, dtype=torch.float64).to(dtype)


def named(name: str) -> Overload:
    base, _, overload = name.partition(".")
    found: Overload = getattr(getattr(aten, base), overload or "default")
    return found


ARITHMETIC = "add.Tensor sub.Tensor rsub.Tensor mul.Tensor div.Tensor remainder.Tensor fmod.Tensor floor_divide pow.Tensor_Tensor".split()
COMPARISONS = [f"{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")]
LOGIC = ["logical_and", "logical_or", "logical_xor"]
SELECTION = ["maximum", "minimum", "fmax", "fmin", "copysign.Tensor", "heaviside", "nextafter", "clamp_min.Tensor", "clamp_max.Tensor"]
INTEGER_EXTRAS = ["logical_and", "maximum", "fmin", "copysign.Tensor", "heaviside", "atan2", "lcm"]
OTHERS = "atan2 hypot xlogy.Tensor special_xlog1py logaddexp logaddexp2 ldexp.Tensor sigmoid_backward tanh_backward".split()


@pytest.mark.parametrize("name", ARITHMETIC + COMPARISONS + LOGIC + SELECTION + OTHERS)
def test_special_values(name: str) -> None:
    check_lowering(named(name), *pairs(SPECIAL, torch.float32), rtol=3e-6, atol=1e-6)
    check_lowering(named(name), *pairs(SPECIAL, torch.float64))


@pytest.mark.parametrize("name", ARITHMETIC + SELECTION)
def test_bfloat16(name: str) -> None:
    check_lowering(named(name), *pairs(SPECIAL, torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize(
    "name", ARITHMETIC + COMPARISONS[:3] + LOGIC[:1] + ["maximum", "fmin", "copysign.Tensor", "heaviside", "atan2", "lcm"]
)
def test_integers(name: str, dtype: torch.dtype) -> None:
    check_lowering(named(name), *pairs(WHOLE, dtype), rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_gcd(dtype: torch.dtype) -> None:
    check_lowering(aten.gcd.default, *pairs([*WHOLE, 0, 96, 60], dtype))


@pytest.mark.parametrize("name", ["add.Tensor", "mul.Tensor", "div.Tensor", "eq.Tensor", "lt.Tensor", "logical_xor", "maximum"])
def test_bool(name: str) -> None:
    check_lowering(named(name), *pairs([0.0, 1.0], torch.bool))


@pytest.mark.parametrize("name", [*ARITHMETIC[:5], "pow.Tensor_Tensor", "eq.Tensor", "ne.Tensor", "sigmoid_backward", "tanh_backward"])
def test_complex(name: str) -> None:
    values = torch.tensor([0.5 + 1j, -1 + 0.2j, 2 - 1j, 1j, -0.3 - 0.7j])
    check_lowering(named(name), values, values.flip(0), rtol=1e-5, atol=1e-6)
    check_lowering(named(name), values, torch.tensor(2.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shapes", [((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((), ()), ((0, 3), (1, 3))])
@pytest.mark.parametrize("name", ["add.Tensor", "lt.Tensor", "atan2", "maximum"])
def test_broadcasting(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check_lowering(named(name), *(torch.rand(shape) for shape in shapes))


@pytest.mark.parametrize("name", ["add.Tensor", "pow.Tensor_Tensor", "lt.Tensor"])
@pytest.mark.parametrize(
    "dtypes", list(itertools.combinations([torch.uint8, torch.int64, torch.float16, torch.float32, torch.float64], 2)), ids=str
)
def test_mixed_dtypes(name: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    left, right = (torch.tensor([3, 5, 2]).to(dtype) for dtype in dtypes)
    check_lowering(named(name), left, right)
    check_lowering(named(name), left, right[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("mode", [None, "trunc", "floor"])
def test_rounding_modes(dtype: torch.dtype, mode: str | None) -> None:
    values = SPECIAL if dtype.is_floating_point else WHOLE
    check_lowering(aten.div.Tensor_mode, *pairs(values, dtype), rounding_mode=mode)
    check_lowering(aten.div.Scalar_mode, torch.tensor(WHOLE).to(dtype), 3, rounding_mode=mode)


@pytest.mark.parametrize("number", [3, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize(
    "name", "add.Scalar mul.Scalar div.Scalar rsub.Scalar remainder.Scalar fmod.Scalar floor_divide.Scalar lt.Scalar eq.Scalar".split()
)
def test_numbers(name: str, dtype: torch.dtype, number: float) -> None:
    check_lowering(named(name), torch.tensor(WHOLE).to(dtype), number)


@pytest.mark.parametrize("value", [0.1, -1, 300])
def test_comparing_with_numbers_out_of_the_dtype(value: float) -> None:
    for dtype in (torch.bfloat16, torch.uint8, torch.float16):
        check_lowering(aten.eq.Scalar, torch.tensor([0.1, 255.0, 44.0]).to(dtype), value)
        check_lowering(aten.lt.Scalar, torch.tensor([0.1, 255.0, 44.0]).to(dtype), value)


@pytest.mark.parametrize("alpha", [2, -0.5])
def test_alpha(alpha: float) -> None:
    x, y = torch.rand(3, 2), torch.rand(2)
    for func in (aten.add.Tensor, aten.sub.Tensor, aten.rsub.Tensor):
        check_lowering(func, x, y, alpha=alpha)
    check_lowering(aten.add.Tensor, torch.arange(4), torch.arange(4), alpha=3)
    check_lowering(aten.add.Tensor, torch.tensor([True, False]), torch.tensor([False, True]), alpha=True)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.5, math.nan, math.inf])
def test_powers(exponent: float) -> None:
    check_lowering(aten.pow.Tensor_Scalar, torch.tensor(SPECIAL), exponent)
    check_lowering(aten.pow.Tensor_Scalar, torch.tensor(SPECIAL, dtype=torch.bfloat16), exponent)
    check_lowering(aten.pow.Scalar, exponent, torch.tensor(SPECIAL))
    if exponent in (0, 1, 2, 3, 4):
        check_lowering(aten.pow.Tensor_Scalar, torch.tensor(WHOLE), exponent)
        check_lowering(aten.pow.Tensor_Scalar, torch.tensor([1 + 1j, -2j]), exponent)


def test_whole_powers_wrap_like_the_word() -> None:
    base, exponent = pairs([-3, -2, -1, 0, 1, 2, 3, 7, 63], torch.int64)
    check_lowering(aten.pow.Tensor_Tensor, base, exponent)
    check_lowering(aten.pow.Scalar, 3, torch.arange(60))
    check_lowering(aten.pow.Tensor_Tensor, torch.tensor([200, 3, 2], dtype=torch.uint8), torch.tensor([3, 5, 9], dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
def test_bits(dtype: torch.dtype) -> None:
    left, right = pairs([0, 1, -1, 5, -8, 100], dtype)
    for name in ("and", "or", "xor"):
        check_lowering(named(f"bitwise_{name}.Tensor"), left, right)
        check_lowering(named(f"bitwise_{name}.Scalar"), left, 6)
        check_lowering(named(f"bitwise_{name}.Scalar_Tensor"), 6, left)
    check_lowering(aten.bitwise_not.default, left)
    check_lowering(aten.bitwise_not.default, left > 0)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8])
@pytest.mark.parametrize("amount", [0, 1, 7, 8, 63, 64, -1])
def test_shifts(dtype: torch.dtype, amount: int) -> None:
    values = torch.tensor([0, 1, -1, 5, -128, 127]).to(dtype)
    check_lowering(aten.bitwise_left_shift.Tensor_Scalar, values, amount)
    check_lowering(aten.bitwise_right_shift.Tensor_Scalar, values, amount)
    check_lowering(aten.__rshift__.Scalar, values, amount)
    check_lowering(aten.bitwise_left_shift.Tensor, values, torch.full_like(values, amount))


@pytest.mark.parametrize("bounds", [(None, 1.0), (0.0, None), (-1, 2), (2, 0), (math.nan, 1.0), (0.0, math.nan)])
def test_clamp(bounds: tuple[float | None, float | None]) -> None:
    check_lowering(aten.clamp.default, torch.tensor(SPECIAL), *bounds)
    if not any(bound != bound for bound in bounds):
        check_lowering(aten.clamp.default, torch.tensor(WHOLE), *bounds)


def test_clamp_by_tensors() -> None:
    x, low, high = torch.tensor(SPECIAL)[:, None], torch.tensor([0.0, math.nan, -1.0]), torch.tensor(0.75)
    check_lowering(aten.clamp.Tensor, x, low, high)
    check_lowering(aten.clamp.Tensor, x, None, low)
    check_lowering(aten.clamp_min.default, torch.arange(-3, 3), -1.5)
    check_lowering(aten.clamp_max.default, torch.arange(-3, 3), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("weight", [0.0, 0.25, 0.5, 0.8, 1.0, -2.0])
def test_lerp(dtype: torch.dtype, weight: float) -> None:
    start, end = pairs([0.0, 1.0, -2.5, 1e6], dtype)
    check_lowering(aten.lerp.Scalar, start, end, weight)
    check_lowering(aten.lerp.Tensor, start, end, torch.linspace(-1, 2, 16).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_addcmul_addcdiv(dtype: torch.dtype) -> None:
    x, y, z = torch.tensor([[1.0], [2.0]]).to(dtype), torch.tensor([3.0, -4.0]).to(dtype), torch.tensor([2.0, 5.0]).to(dtype)
    check_lowering(aten.addcmul.default, x, y, z, value=3)
    if dtype is not torch.int64:
        check_lowering(aten.addcdiv.default, x, y, z, value=0.3)


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.int64, torch.float32), (torch.bool, torch.complex64)])
def test_where(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    condition = torch.tensor([[True], [False]])
    check_lowering(aten.where.self, condition, torch.ones(3).to(dtypes[0]), torch.tensor(2.0).to(dtypes[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_incomplete_gamma(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, 0.3, 1.0, 4.5, 20.0, math.inf, -1.0], dtype=dtype)
    a, x = (side.flatten() for side in torch.meshgrid(values, values, indexing="ij"))
    check_lowering(aten.igamma.default, a, x, rtol=1e-5, atol=1e-6)
    check_lowering(aten.igammac.default, a, x, rtol=1e-5, atol=1e-6)


def test_zeta() -> None:
    x, q = pairs([0.5, 1.0, 2.0, 3.5, 10.0, 0.0, -1.0, -2.5, -30.25], torch.float64)
    check_lowering(aten.special_zeta.default, x, q)
    check_lowering(aten.special_zeta.self_scalar, 3.0, q)
    check_lowering(aten.special_zeta.other_scalar, x, 2.0)


def test_complex_constructors() -> None:
    check_lowering(aten.complex.default, torch.tensor([1.0, 2.0]), torch.tensor([[0.5], [-1.0]]))
    check_lowering(aten.polar.default, torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0]))


CHANGING = [
    (aten.add.Tensor, (torch.rand(3), torch.rand(3)), {"alpha": 0.3}),
    (aten.add.Scalar, (torch.rand(3), 1.7), {}),
    (aten.mul.Scalar, (torch.rand(3), 1.7), {}),
    (aten.div.Scalar, (torch.rand(3), 1.7), {}),
    (aten.pow.Scalar, (1.7, torch.rand(3)), {}),
    (aten.remainder.Scalar, (torch.rand(3), 0.3), {}),
    (aten.lt.Scalar, (torch.tensor([0.1, 0.3, 0.5]), 0.3), {}),
    (aten.eq.Scalar, (torch.tensor(0.1), 0.1), {}),
    (aten.eq.Scalar, (torch.tensor([0.1], dtype=torch.bfloat16), 0.1), {}),
    (aten.clamp.default, (torch.rand(3), 0.2, 0.8), {}),
    (aten.lerp.Scalar, (torch.rand(3), torch.rand(3), 0.7), {}),
    (aten.addcmul.default, (torch.rand(3), torch.rand(3), torch.rand(3)), {"value": 0.3}),
    (aten.addcdiv.default, (torch.rand(3), torch.rand(3), torch.rand(3)), {"value": 0.3}),
    (aten.xlogy.Scalar_Other, (torch.rand(3), 1.7), {}),
    (aten.bitwise_and.Scalar, (torch.tensor([5, 6]), 3), {}),
]


@pytest.mark.parametrize(("func", "args", "kwargs"), CHANGING, ids=[f"{i}-{row[0]}" for i, row in enumerate(CHANGING)])
def test_numbers_that_arrive_as_inputs(func: Overload, args: tuple[object, ...], kwargs: dict[str, float]) -> None:
    def as_input(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value
        return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)

    expected = func(*args, **kwargs)
    (got,) = lower_once(func, expected, *map(as_input, args), **{name: as_input(value) for name, value in kwargs.items()})
    torch.testing.assert_close(got, expected)


def test_every_kernel_has_a_row() -> None:
    for name in binary.KERNELS:
        assert named(name)._schema.name.startswith("aten::")


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(("tiers", "length"), [("0", 1024), ("1", 2048)])  # of one length the second would be in the cache
def test_products_of_complex_numbers_are_rounded_as_on_the_cpu(
    dtype: torch.dtype, tiers: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit, also where a sum follows."""
    monkeypatch.setenv("XLA_TIERED_COMPILATION", tiers)
    x, y = torch.randn(2, length, dtype=dtype)  # of other lengths the CPU computes the last ones differently
    on_device = x.to("xla"), y.to("xla")
    assert torch.equal((on_device[0] * on_device[1]).cpu(), x * y)
    assert torch.equal((on_device[0] * on_device[1] + on_device[0]).cpu(), x * y + x)
