"""Activation lowerings against CPU torch, with the values where formulas break: NaN, infinities, zeros and the bounds themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import torch_xla
import xla_core.ops.elementwise.activation  # noqa: F401 - registers the family
from xla_core.features.export.stablehlo import get_stablehlo
from xla_core.testing.lowering import check_lowering

aten = torch.ops.aten

EDGES = [
    float("nan"),
    float("inf"),
    -float("inf"),
    0.0,
    -0.0,
    0.5,
    -0.5,
    1.0,
    -1.0,
    3.0,
    -3.0,
    6.0,
    20.0,
    25.0,
    -25.0,
    0.01,
    -104.0,
    90.0,
    1e-8,
]
FORWARD: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.relu, ()),
    (aten.threshold, (0.5, 7.0)),
    (aten.hardtanh, (-0.5, 3.0)),
    (aten.leaky_relu, (0.1,)),
    (aten.elu, (1.5, 1.1, 0.5)),
    (aten.celu, (1.3,)),
    (aten.silu, ()),
    (aten.mish, ()),
    (aten.hardsigmoid, ()),
    (aten.hardswish, ()),
    (aten.softplus, (2, 10)),
    (aten.hardshrink, (0.5,)),
    (aten.softshrink, (0.5,)),
]
BACKWARD: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.threshold_backward, (0.5,)),
    (aten.hardtanh_backward, (-0.5, 3.0)),
    (aten.leaky_relu_backward, (0.1, False)),
    (aten.gelu_backward, ()),
    (aten.hardsigmoid_backward, ()),
    (aten.hardswish_backward, ()),
    (aten.softplus_backward, (1, 20)),
    (aten.hardshrink_backward, (0.5,)),
    (aten.softshrink_backward, (0.5,)),
    (aten.mish_backward, ()),
    (aten.silu_backward, ()),
]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    """Half precision is compared after one rounding, so one unit in the last place may differ."""
    return {"rtol": 1e-2, "atol": 1e-2} if dtype is torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-6}


def edges(dtype: torch.dtype, *, with_infinities: bool = True) -> torch.Tensor:
    """The edge values and some ordinary ones."""
    kept = EDGES if with_infinities else [v for v in EDGES if abs(v) < 30]
    return torch.cat([torch.tensor(kept), torch.randn(13)]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("func", "args"), FORWARD, ids=lambda v: str(v) if callable(v) else "")
def test_forward(func: Any, args: tuple[Any, ...], dtype: torch.dtype) -> None:
    check_lowering(func.default, edges(dtype), *args, **tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("func", "args"), BACKWARD, ids=lambda v: str(v) if callable(v) else "")
def test_backward(func: Any, args: tuple[Any, ...], dtype: torch.dtype) -> None:
    x = edges(dtype, with_infinities=False)
    check_lowering(func.default, torch.randn(x.shape).to(dtype), x, *args, **tolerance(dtype))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 3)], ids=str)
@pytest.mark.parametrize("func", [aten.relu, aten.gelu, aten.softplus, aten.elu], ids=str)
def test_small_shapes(func: Any, shape: tuple[int, ...]) -> None:
    check_lowering(func.default, torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.uint8], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    x = torch.arange(-4, 5).to(dtype)
    check_lowering(aten.relu.default, x)
    check_lowering(aten.threshold.default, x, 1, 3)
    check_lowering(aten.threshold_backward.default, torch.ones_like(x), x, 1)


@pytest.mark.parametrize("is_result", [False, True])
def test_elu_backward(is_result: bool) -> None:
    x = edges(torch.float32, with_infinities=False)
    check_lowering(aten.elu_backward.default, torch.randn(x.shape), 1.5, 1.1, 0.5, is_result, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("func", "args"), [row for row in BACKWARD if row[0] is not aten.gelu_backward], ids=lambda v: str(v) if callable(v) else ""
)
def test_backward_of_many_gradients(func: Any, args: tuple[Any, ...]) -> None:
    x = edges(torch.float32, with_infinities=False)
    for grad in (torch.randn(2, *x.shape), torch.randn(2, 1)):
        check_lowering(func.default, grad, x, *args, **tolerance(torch.float32))


@pytest.mark.parametrize("is_result", [False, True])
def test_elu_backward_of_many_gradients(is_result: bool) -> None:
    x = edges(torch.float32, with_infinities=False)
    for grad in (torch.randn(2, *x.shape), torch.randn(2, 1)):
        check_lowering(aten.elu_backward.default, grad, 1.5, 1.1, 0.5, is_result, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str, dtype: torch.dtype) -> None:
    """Without infinities: in float32 the vectorised CPU kernel of torch gives NaN for them, in float64 it does not."""
    x = edges(dtype, with_infinities=False)
    check_lowering(aten.gelu.default, x, approximate=approximate, **tolerance(dtype))
    check_lowering(aten.gelu_backward.default, torch.randn(x.shape).to(dtype), x, approximate=approximate, **tolerance(dtype))


def test_log_sigmoid() -> None:
    x = edges(torch.float64)
    check_lowering(aten.log_sigmoid_forward.default, x)
    _, buffer = aten.log_sigmoid_forward(x)
    check_lowering(aten.log_sigmoid_backward.default, torch.randn_like(x), x, buffer)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_glu(dim: int) -> None:
    x = torch.randn(4, 6)
    half = aten.glu(x, dim)
    check_lowering(aten.glu.default, x, dim)
    check_lowering(aten.glu_backward.default, torch.randn_like(half), x, dim)
    check_lowering(aten.glu_jvp.default, half, x, torch.randn_like(x), dim)


def test_prelu() -> None:
    x, weight = torch.randn(2, 3, 4), torch.randn(1, 3, 1)
    check_lowering(aten._prelu_kernel.default, x, weight)
    check_lowering(aten._prelu_kernel_backward.default, torch.randn_like(x), x, weight)


def test_rrelu_backward() -> None:
    grad, x, noise = torch.randn(3, 7).unbind(0)
    check_lowering(aten.rrelu_with_noise_backward.default, grad, x, noise, 0.1, 0.3, True, False)
    check_lowering(aten.rrelu_with_noise_backward.default, grad, x, noise, 0.1, 0.3, False, False)


def test_complex_silu() -> None:
    grad, x = torch.randn(2, 9, dtype=torch.complex128).unbind(0)
    check_lowering(aten.silu.default, x)
    check_lowering(aten.silu_backward.default, grad, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_relu_is_computed_in_its_own_dtype(dtype: torch.dtype) -> None:
    """Nothing is rounded, and XLA would keep what is wider for the gradient: a fifth of the memory of a ResNet on GPUs."""
    x = torch.linspace(-1, 1, 9, dtype=dtype, device="xla", requires_grad=True)
    torch_xla.sync()
    result = torch.relu(x)
    (slope,) = torch.autograd.grad(result, x, torch.ones_like(result))
    assert "f32" not in get_stablehlo([result.detach(), slope])
    assert slope.cpu().tolist() == [0.0] * 5 + [1.0] * 4


@pytest.mark.parametrize("threshold", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_gradients_of_a_threshold_compare_in_the_dtype_that_torch_does(threshold: float, dtype: torch.dtype) -> None:
    values = torch.tensor([0.1, 0.0999, 0.1001, 0.0, -0.0, float("nan"), -1.0, 2.0], dtype=dtype)
    check_lowering(aten.threshold_backward.default, torch.ones_like(values), values, threshold)
