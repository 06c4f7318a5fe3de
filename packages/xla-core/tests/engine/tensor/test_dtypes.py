"""Every dtype keeps its name and its values; the conversion variables change only how numbers are computed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest
import torch

import torch_xla
from xla_core.base.errors import UnsupportedDtypeError

Tensor = torch.Tensor
Run = Callable[..., str]

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EIGHTS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
COMPLEX = [torch.complex64, torch.complex128]
ALL = [torch.bool, *INTEGERS, *FLOATS, *EIGHTS, *COMPLEX]
COMPUTING = [*INTEGERS[:5], *FLOATS, *COMPLEX]


def values(dtype: torch.dtype) -> Tensor:
    """Numbers at the edges of a dtype."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True])
    if dtype.is_complex:
        return torch.tensor([1 + 2j, -0.5j, float("inf"), 1e30], dtype=dtype)
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        return torch.tensor([0.0, -0.0, 1.5, -2.0, limits.max, limits.min, limits.tiny, float("nan")], dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.tensor([limits.min, limits.max, 0, 1], dtype=dtype)


def bits(tensor: Tensor) -> list[int]:
    """All bytes of a CPU tensor."""
    whole: list[int] = tensor.contiguous().view(torch.uint8).tolist()
    return whole


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_goes_there_and_back(dtype: torch.dtype) -> None:
    origin = values(dtype)
    moved = origin.to("xla")
    assert moved.dtype is dtype and moved.element_size() == origin.element_size()
    assert bits(moved.cpu()) == bits(origin)
    torch_xla.sync()
    assert bits((moved.clone()).cpu()) == bits(origin)
    assert bits(moved[1:].cpu()) == bits(origin[1:])
    assert moved.to("cpu", copy=True).dtype is dtype


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL if dtype not in EIGHTS], ids=str)
def test_every_dtype_is_stored_and_indexed(dtype: torch.dtype) -> None:
    origin = values(dtype)
    stored = torch.zeros(4, dtype=dtype, device="xla")
    stored[1:3] = origin[2:4].to("xla") if len(origin) > 3 else origin[:2].to("xla")
    expected = torch.zeros(4, dtype=dtype)
    expected[1:3] = origin[2:4] if len(origin) > 3 else origin[:2]
    assert bits(stored.cpu()) == bits(expected)
    assert stored.tolist() == expected.tolist()
    assert bits(torch.stack([stored, stored]).cpu()) == bits(torch.stack([expected, expected]))


@pytest.mark.parametrize("dtype", COMPUTING, ids=str)
def test_computing_stays_in_the_dtype(dtype: torch.dtype) -> None:
    origin = (
        torch.tensor([3, -2, 5], dtype=torch.float64).to(dtype) if dtype is not torch.uint8 else torch.tensor([3, 200, 100], dtype=dtype)
    )
    for use in (
        lambda x: x + x,
        lambda x: x * 3,
        lambda x: x - 1,
        lambda x: (x * x).sum(),
        lambda x: x / 2,
        lambda x: x.cumsum(0),
        lambda x: x @ x,
    ):
        expected, got = use(origin), use(origin.to("xla"))
        assert got.dtype is expected.dtype
        torch.testing.assert_close(got.cpu(), expected)


def test_wide_numbers_are_wide() -> None:
    big = torch.tensor([(1 << 62) + 1, -(1 << 63)], device="xla")
    assert (big + 1).tolist() == [(1 << 62) + 2, -(1 << 63) + 1]
    assert (big // 3).tolist() == [((1 << 62) + 1) // 3, -(1 << 63) // 3]
    fine = torch.tensor([1.0], dtype=torch.float64, device="xla")
    assert (fine + 1e-15).item() == 1.0 + 1e-15
    assert torch.tensor([1e300], dtype=torch.float64, device="xla").mul(10).item() == 1e301
    assert (torch.tensor([1 + 1e-12j], dtype=torch.complex128, device="xla") * 1).imag.item() == 1e-12
    assert torch.arange(3, device="xla").dtype is torch.int64
    assert torch.tensor([1.0]).to("xla").double().div(3).item() == 1 / 3


def test_narrow_numbers_round_as_on_the_cpu() -> None:
    numbers = torch.linspace(-3, 3, 50)
    for dtype in (torch.float16, torch.bfloat16):
        cpu, xla = numbers.to(dtype), numbers.to("xla").to(dtype)
        assert bits(xla.cpu()) == bits(cpu)
        assert bits((xla * xla).cpu()) == bits(cpu * cpu)
        assert bits((xla + 0.1).cpu()) == bits(cpu + 0.1)
        assert bits(xla.float().cpu()) == bits(cpu.float())


CASTS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


@pytest.mark.parametrize("source", CASTS, ids=str)
def test_casts_between_dtypes(source: torch.dtype) -> None:
    origin = torch.tensor([0, 1, 2, 100], dtype=torch.float64).to(source)
    mine = origin.to("xla")
    targets = [target for target in CASTS if target.is_complex or not source.is_complex]
    results = [mine.to(target) for target in targets]
    torch_xla.sync()
    for target, result in zip(targets, results, strict=True):
        assert result.dtype is target
        torch.testing.assert_close(result.cpu(), origin.to(target))


@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=str)
def test_fractions_are_cut_towards_zero(source: torch.dtype) -> None:
    origin = torch.tensor([1.9, -1.9, 0.5, -0.5], dtype=source)
    assert origin.to("xla").to(torch.int32).tolist() == origin.to(torch.int32).tolist() == [1, -1, 0, 0]
    assert origin.to("xla").bool().tolist() == [True] * 4


@pytest.mark.parametrize(("dtype", "instead"), [(torch.complex32, "complex64"), (torch.bits8, "one of bfloat16, bool")], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_dtypes_that_xla_lacks_are_named(dtype: torch.dtype, instead: str) -> None:
    with pytest.raises(UnsupportedDtypeError, match=f"{dtype} has no counterpart on XLA devices; use {instead}") as caught:
        torch.empty(2, dtype=dtype, device="xla")
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("cast", ["x.to(torch.float32)", "torch.zeros(1, device='xla').copy_(x)"])
def test_lost_imaginary_parts_are_said_as_on_the_cpu(cast: str, run: Run) -> None:
    output = run(
        f"""
        import warnings
        import torch, torch_xla
        x = torch.ones(1, dtype=torch.complex64, device="xla")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(2):
                {cast}
        print(len(said), said[0].message)
        """
    )
    assert output.startswith("1 Casting complex values to real discards the imaginary part")


def test_default_dtype_is_followed() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.ones(1, device="xla").dtype is torch.float64
        assert (torch.arange(2, device="xla") / 2).dtype is torch.float64
        assert (torch.arange(2, device="xla") / 2).tolist() == [0.0, 0.5]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.ones(1, device="xla").dtype is torch.float32
    assert (torch.arange(2, device="xla") / 2).dtype is torch.float32


# Prints, for float32 and float64: reported dtypes, 1 + 2**-8 (bf16 has 8 bits), 1 + 2**-30, 0.1, a sum of many, and an int64.
PROBE = """
    import torch, torch_xla
    for dtype in (torch.float32, torch.float64):
        one = torch.ones(1, dtype=dtype, device="xla")
        print(one.dtype is dtype, (one + 2.0**-8).cpu().dtype is dtype, (one + 2.0**-8 - 1).item() > 0, (one + 2.0**-30 - 1).item() > 0)
        print(torch.tensor([0.1], dtype=dtype).to("xla").item(), (one * 3).sqrt().dtype is dtype)
    print((torch.tensor([(1 << 40) + 1], device="xla") + 1).item(), end=" ")
    print(torch.ones(1, dtype=torch.float16, device="xla").add(2.0**-10).item() > 1)
    layer = torch.nn.Linear(4, 4).to("xla")
    layer(torch.ones(2, 4, device="xla")).sum().backward()
    print(layer.weight.grad.dtype, layer.weight.grad.cpu().sum().item())
"""
BF16, F32, F64 = 0.10009765625, 0.10000000149011612, 0.1
EXPECTED = {
    "none": [["True True True False", f"{F32} True"], ["True True True True", f"{F64} True"]],
    "use": [["True True False False", f"{BF16} True"], ["True True False False", f"{BF16} True"]],
    "downcast": [["True True False False", f"{BF16} True"], ["True True True False", f"{F32} True"]],
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "none"),
        ({"XLA_USE_BF16": "0", "XLA_DOWNCAST_BF16": "0"}, "none"),
        ({"XLA_USE_BF16": "1"}, "use"),
        ({"XLA_DOWNCAST_BF16": "1"}, "downcast"),
        ({"XLA_USE_BF16": "1", "XLA_DOWNCAST_BF16": "1"}, "use"),
    ],
    ids=["none", "off", "e07", "e08", "both"],
)
def test_conversion_variables(variables: dict[str, str], expected: str, run: Run) -> None:
    output = run(PROBE, **variables).splitlines()
    assert output[:4] == [line for lines in EXPECTED[expected] for line in lines]
    assert output[4:] == [f"{(1 << 40) + 2} True", "torch.float32 32.0"]


@pytest.mark.targets
@pytest.mark.parametrize("variable", ["XLA_USE_BF16", "XLA_DOWNCAST_BF16"])
@pytest.mark.parametrize(("target", "compiler"), [("v5e", "libtpu"), ("h100", "jax_cuda13_plugin")])
def test_targets_multiply_in_bfloat16_where_a_variable_says_so(target: str, compiler: str, variable: str, run: Run) -> None:
    if importlib.util.find_spec(compiler) is None:
        pytest.skip(f"needs {compiler}: hatch run targets:test")
    code = """
        import re, torch, torch_xla
        from xla_core.features.export.stablehlo import get_stablehlo
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 16)).to("xla")
        model(torch.zeros(4, 3, 8, 8, device="xla")).square().mean().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        products = re.findall(r"(?:dot_general|convolution).*?: \\(tensor<(\\S+)>, tensor<(\\S+)>\\) ->", get_stablehlo(gradients))
        print(len(products), {dtype.rpartition("x")[2] for pair in products for dtype in pair})
        torch_xla.sync()
    """
    assert run(code, **{variable: "1", "XLA_TARGET": target, "JAX_PLATFORMS": "cpu"}).strip() == "5 {'bf16'}"


def test_bits_are_refused_where_there_are_none(run: Run) -> None:
    code = """
        import torch, torch_xla
        try:
            torch.ones(2, device="xla").view(torch.int32).tolist()
        except NotImplementedError as error:
            print("natural layout" in str(error))
        print(torch.ones(2, dtype=torch.bfloat16, device="xla").view(torch.int16).tolist())
    """
    assert run(code, XLA_USE_BF16="1").splitlines() == ["True", "[16256, 16256]"]


def test_conversion_variables_count_until_the_first_tensor(run: Run) -> None:
    code = """
        import os, torch, torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr
        torch_xla.manual_seed(3), xm.set_rng_state(5), torch_xla.device(), xr.device_type()
        torch.ones(2, dtype=torch.bool, device="xla").tolist()
        os.environ["XLA_USE_BF16"] = "1"
        print(torch_xla.device(), (torch.ones(1, device="xla") + 2.0**-8 - 1).item())
    """
    assert run(code).strip() == "xla:0 0.0"


@pytest.mark.parametrize("notices", ["torch_xla.device()", "torch.ones(4, device='xla').sin().tolist()"])
def test_conversion_variables_that_come_too_late_warn(notices: str, run: Run) -> None:
    code = f"""
        import os, warnings, torch, torch_xla
        one = torch.ones(1, device="xla")
        os.environ["XLA_USE_BF16"] = "1"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            {notices}
        print(str(said[0].message).partition(":")[0])
        del os.environ["XLA_USE_BF16"]
        warnings.simplefilter("error")
        torch_xla.device()
        print((one + 2.0**-8 - 1).item() > 0)
    """
    lines = run(code).splitlines()
    assert lines == ["XLA_USE_BF16=1, XLA_DOWNCAST_BF16=0, XLA_USE_32BIT_LONG=0 has no effect any more", "True"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_products_with_booleans_keep_nan_and_the_sign_of_zero(dtype: torch.dtype) -> None:
    x, mask = torch.tensor([float("inf"), float("nan"), -3.0, 2.0], dtype=dtype), torch.tensor([False, False, False, True])
    mine, theirs = (x.to("xla") * mask.to("xla")).cpu(), x * mask
    assert bits(mine[2:]) == bits(theirs[2:])
    torch.testing.assert_close(mine[:2].isnan(), theirs[:2].isnan())
