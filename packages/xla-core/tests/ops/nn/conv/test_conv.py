"""Convolution lowerings against CPU torch: every way they are lowered, forward and all three gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
import torch

import xla_core.ops.nn.conv.conv  # noqa: F401 - registers the family
from xla_core.ops.nn.conv import choice as conv_choice
from xla_core.ops.nn.conv import direct as conv_direct
from xla_core.ops.nn.conv import taps as conv_taps
from xla_core.ops.nn.conv.shape import Window, taps, useful_share
from xla_core.ops.table import TABLE, Context
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


@dataclass(frozen=True)
class Case:
    """One convolution: shapes of input and weight, and torch's arguments."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)
    groups: int = 1
    name: str = field(default="", compare=False)

    @property
    def settings(self) -> list[Any]:
        rank = len(self.x) - 2
        spread = [list(v) if len(v) == rank else list(v) * rank for v in (self.stride, self.padding, self.dilation, self.output_padding)]
        return [spread[0], spread[1], spread[2], self.transposed, spread[3], self.groups]

    @property
    def outs(self) -> int:
        return self.weight[1] * self.groups if self.transposed else self.weight[0]


CASES = [
    Case((2, 3, 9), (4, 3, 3), padding=(1,), name="1d"),
    Case((2, 3, 9), (4, 3, 3), stride=(2,), dilation=(2,), name="1d-strided-dilated"),
    Case((2, 3, 8, 7), (4, 3, 3, 3), padding=(1,), name="2d"),
    Case((2, 3, 8, 7), (4, 3, 3, 2), stride=(2, 3), padding=(1, 0), name="2d-strided"),
    Case((2, 3, 8, 7), (4, 3, 1, 1), stride=(2,), name="2d-pointwise"),
    Case((2, 80, 4, 4), (72, 80, 3, 3), padding=(1,), name="2d-small-map"),
    Case((2, 5, 2, 2), (4, 5, 3, 3), padding=(1,), name="2d-map-below-kernel"),
    Case((2, 5, 1, 1), (4, 5, 3, 3), padding=(1,), name="2d-one-position"),
    Case((2, 5, 4, 4), (4, 5, 3, 3), stride=(2,), padding=(1,), name="2d-gradient-map-below-kernel"),
    Case((2, 3, 6, 6), (4, 3, 3, 3), padding=(4,), name="2d-padding-above-kernel"),
    Case((2, 6, 8, 7), (6, 1, 3, 3), padding=(1,), groups=6, name="2d-depthwise"),
    Case((2, 4, 8, 7), (8, 1, 3, 3), stride=(2,), padding=(1,), groups=4, name="2d-depthwise-multiplied"),
    Case((2, 5, 9), (5, 1, 4), padding=(3,), groups=5, name="1d-depthwise"),
    Case((2, 3, 150), (6, 1, 40), stride=(3,), padding=(5,), groups=3, name="1d-depthwise-long"),
    Case((2, 6, 9, 8), (6, 1, 7, 7), padding=(3,), groups=6, name="2d-depthwise-map-about-kernel"),
    Case((2, 6, 9, 8), (6, 1, 5, 2), (2, 3), (2, 0), groups=6, name="2d-depthwise-strided"),
    Case((2, 4, 11, 10), (4, 1, 3, 3), (2, 1), (3, 2), (2, 3), groups=4, name="2d-depthwise-strided-dilated"),
    Case((2, 3, 7, 7), (3, 1, 2, 2), stride=(4,), groups=3, name="2d-depthwise-stride-above-kernel"),
    Case((2, 3, 4, 4), (3, 1, 2, 2), padding=(3,), groups=3, name="2d-depthwise-padding-above-kernel"),
    Case((2, 3, 1, 1), (6, 1, 3, 3), padding=(1,), groups=3, name="2d-depthwise-one-position"),
    Case((1, 2, 14, 15), (2, 1, 13, 11), padding=(6, 5), groups=2, name="2d-depthwise-large-kernel"),
    Case((1, 2, 30, 41), (4, 1, 12, 12), (1, 2), (5,), (2, 1), groups=2, name="2d-depthwise-large-kernel-strided-dilated"),
    Case((2, 3, 4, 70), (3, 1, 3, 3), padding=(1,), groups=3, name="2d-depthwise-wide"),
    Case((2, 3, 5, 6, 4), (6, 1, 3, 2, 3), (2, 1, 2), (1, 0, 1), groups=3, name="3d-depthwise"),
    Case((1, 2, 7, 6, 6), (2, 1, 6, 5, 5), padding=(2,), groups=2, name="3d-depthwise-large-kernel"),
    Case((2, 4, 4, 5), (4, 1, 4, 4), (2,), (1,), transposed=True, groups=4, name="2d-transposed-depthwise"),
    Case((2, 3, 4, 5), (3, 2, 3, 3), (3,), (2,), (2,), True, (2, 1), 3, name="2d-transposed-grouped-outputs"),
    Case((2, 3, 4, 5), (3, 1, 3, 3), (3,), (2,), (2,), True, (2, 1), 3, name="2d-transposed-depthwise-output-padding"),
    Case((2, 8, 8, 7), (12, 2, 3, 3), padding=(1,), groups=4, name="2d-grouped"),
    Case((1, 80, 5, 5), (80, 2, 3, 3), padding=(1,), groups=40, name="2d-grouped-blocks"),
    Case((2, 2, 5, 6, 4), (3, 2, 3, 2, 2), stride=(1, 2, 1), padding=(1,), name="3d"),
    Case((2, 3, 5), (3, 4, 3), stride=(2,), padding=(1,), transposed=True, output_padding=(1,), name="1d-transposed"),
    Case((2, 4, 4, 5), (4, 3, 4, 4), stride=(2,), padding=(1,), transposed=True, name="2d-transposed"),
    Case(
        (2, 4, 4, 5),
        (4, 3, 3, 3),
        stride=(3,),
        dilation=(2,),
        transposed=True,
        output_padding=(2, 1),
        groups=2,
        name="2d-transposed-grouped",
    ),
    Case((1, 2, 4, 4), (2, 2, 4, 5), (3, 2), (1, 2), (4, 4), True, (2, 3), 2, name="2d-transposed-output-padding-above-stride"),
    Case((1, 2, 3, 3, 3), (2, 3, 2, 2, 2), stride=(2,), transposed=True, name="3d-transposed"),
    Case((0, 3, 8, 7), (4, 3, 3, 3), padding=(1,), name="2d-no-examples"),
]
by_name = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


def operands(case: Case, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Input, weight and bias."""
    return tuple(torch.randn(shape).to(dtype) for shape in (case.x, case.weight, (case.outs,)))  # type: ignore[return-value]


@by_name
def test_forward(case: Case) -> None:
    x, weight, bias = operands(case)
    check_lowering(aten.convolution.default, x, weight, bias, *case.settings, rtol=1e-4, atol=1e-4)


@by_name
def test_backward(case: Case) -> None:
    x, weight, bias = operands(case)
    grad = torch.randn_like(aten.convolution(x, weight, bias, *case.settings))
    check_lowering(
        aten.convolution_backward.default, grad, x, weight, [case.outs], *case.settings, [True, True, True], rtol=1e-4, atol=2e-4
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.int64], ids=str)
def test_dtypes(dtype: torch.dtype) -> None:
    case = CASES[2]
    x, weight, bias = (v * 4 if dtype is torch.int64 else v for v in operands(case))
    half = dtype.itemsize == 2
    close = {"rtol": 2e-2 if half else 1e-4, "atol": 2e-2 if half else 1e-4}
    if dtype.is_complex:  # torch makes real convolutions of a complex one before it gets here; the lowering need not know
        x, weight = torch.complex(x, x.flip(0)), torch.complex(weight, weight.flip(0))
        real, imaginary = (aten.convolution(x.real, part, None, *case.settings) for part in (weight.real, weight.imag))
        crossed, squared = (aten.convolution(x.imag, part, None, *case.settings) for part in (weight.real, weight.imag))
        expected = torch.complex(real - squared, imaginary + crossed)
        got = _lower("aten::convolution", expected, x, weight, None, *case.settings)
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-4)
        return
    check_lowering(aten.convolution.default, x.to(dtype), weight.to(dtype), bias.to(dtype), *case.settings, **close)


def _lower(name: str, like: torch.Tensor, *args: Any) -> Any:
    """The result of one lowering of jax arrays made of the tensors among `args`."""
    arrays = [jax.numpy.asarray(a.numpy()) if isinstance(a, torch.Tensor) else a for a in args]
    inferred = jax.ShapeDtypeStruct(tuple(like.shape), like.numpy().dtype)
    return np.asarray(TABLE[name].lower(Context((inferred,)), *arrays))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64], ids=str)
def test_dtypes_of_depthwise(dtype: torch.dtype) -> None:
    case = next(c for c in CASES if c.name == "2d-depthwise-multiplied")
    x, weight, bias = (v * 4 if dtype is torch.int64 else v for v in operands(case))
    x, weight, bias = x.to(dtype), weight.to(dtype), bias.to(dtype)
    close = {"rtol": 2e-2 if dtype.itemsize == 2 else 1e-5, "atol": 2e-2 if dtype.itemsize == 2 else 1e-5}
    check_lowering(aten.convolution.default, x, weight, bias, *case.settings, **close)
    if dtype.is_floating_point:  # torch has no gradients of integers
        grad = torch.randn(aten.convolution(x, weight, bias, *case.settings).shape).to(dtype)
        check_lowering(aten.convolution_backward.default, grad, x, weight, [case.outs], *case.settings, [True, True, True], **close)


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [False, False, True]])
def test_output_mask(mask: list[bool]) -> None:
    case = CASES[3]
    x, weight, bias = operands(case)
    grad = torch.randn_like(aten.convolution(x, weight, bias, *case.settings))
    full = aten.convolution_backward(grad, x, weight, [case.outs], *case.settings, [True, True, True])
    expected = [g if wanted else None for g, wanted in zip(full, mask, strict=True)]
    got = lower_once(aten.convolution_backward.default, expected, grad, x, weight, [case.outs], *case.settings, mask)
    for mine, theirs in zip(got, expected, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_overrideable_rows_are_the_same() -> None:
    case = CASES[3]
    x, weight, bias = operands(case)
    expected = aten.convolution(x, weight, bias, *case.settings)
    np.testing.assert_allclose(
        _lower("aten::convolution_overrideable", expected, x, weight, bias, *case.settings), expected, rtol=1e-4, atol=1e-4
    )
    arrays = [jax.numpy.asarray(v.numpy()) for v in (torch.ones_like(expected), x, weight)]
    mine = TABLE["aten::convolution_backward_overrideable"].lower(Context(()), *arrays, *case.settings, [True, True, True])
    theirs = aten.convolution_backward(torch.ones_like(expected), x, weight, [case.outs], *case.settings, [True, True, True])
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=1e-4, atol=1e-4)


def test_conv_tbc() -> None:
    check_lowering(aten.conv_tbc.default, torch.randn(7, 2, 3), torch.randn(3, 3, 4), torch.randn(4), 1, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [c for c in CASES if not c.transposed and c.groups == 1 and 0 not in c.x], ids=lambda c: c.name)
def test_both_ways_agree(case: Case) -> None:
    """One convolution and a product per tap are the same function, whichever the rule prefers."""
    x, weight, _ = operands(case)
    stride, padding, dilation, *_ = (tuple(v) if isinstance(v, list) else v for v in case.settings)
    window, out = Window(stride, padding, dilation), tuple(aten.convolution(x, weight, None, *case.settings).shape[2:])
    last = jax.numpy.asarray(np.moveaxis(x.numpy(), 1, -1))
    matrix, size, kernel = jax.numpy.asarray(weight.numpy()), case.x[2:], case.weight[2:]
    grad = jax.numpy.asarray(np.random.default_rng(0).standard_normal((case.x[0], *out, case.outs)).astype(np.float32))
    pairs = [
        (conv_direct.forward(last, matrix, window, out), conv_taps.forward(last, matrix, window, out)),
        (conv_direct.data_gradient(grad, matrix, size, window), conv_taps.data_gradient(grad, matrix, size, window)),
        (conv_direct.weight_gradient(last, grad, kernel, window), conv_taps.weight_gradient(last, grad, kernel, window)),
    ]
    for a, b in pairs:
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)


def test_taps_skip_padding() -> None:
    window = Window((1, 1), (1, 1), (1, 1))
    assert [tap.offset for tap in taps((1, 1), (1, 1), (3, 3), window)] == [(1, 1)]
    assert useful_share((1, 1), (1, 1), (3, 3), window) == pytest.approx(1 / 9)
    assert useful_share((2, 2), (2, 2), (3, 3), window) == pytest.approx(16 / 36)


def test_small_maps_are_matrix_products_on_the_cpu() -> None:
    """XLA:CPU is a hundred times slower with a kernel larger than the map; large maps keep the convolution."""
    window = Window((1, 1), (1, 1), (1, 1))

    def primitives(size: int) -> str:
        shape = jax.ShapeDtypeStruct((2, size, size, 8), np.float32)
        weight = jax.ShapeDtypeStruct((8, 8, 3, 3), np.float32)
        return str(jax.make_jaxpr(lambda x, w: conv_choice.forward(x, w, window, (size, size)))(shape, weight))

    assert "conv_general_dilated" not in primitives(2)
    assert "conv_general_dilated" in primitives(16)


def test_depthwise_programs_stay_short() -> None:
    """What is written out grows neither with the map nor with the area of a large kernel: compiling takes time by its length."""
    window = Window((1, 1), (15, 15), (1, 1), 8)

    def all_three(x: jax.Array, weight: jax.Array, grad: jax.Array) -> Any:
        return (
            conv_choice.forward(x, weight, window, (200, 200)),
            conv_choice.data_gradient(grad, weight, (200, 200), window),
            conv_choice.weight_gradient(x, grad, (31, 31), window),
        )

    data, weight = jax.ShapeDtypeStruct((2, 200, 200, 8), np.float32), jax.ShapeDtypeStruct((8, 1, 31, 31), np.float32)
    assert str(jax.make_jaxpr(all_three)(data, weight, data)).count(" mul ") < 31 + 31 + 40


def test_channels_last_depthwise() -> None:
    case = next(c for c in CASES if c.name == "2d-depthwise")
    x, weight, bias = operands(case)
    x = x.contiguous(memory_format=torch.channels_last)
    check_lowering(aten.convolution.default, x, weight, bias, *case.settings, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "weight_sizes"), [((2, 0, 7), (12, 0, 3)), ((0, 0, 7), (12, 0, 3)), ((0, 4, 7), (12, 4, 3)), ((2, 0, 7, 8), (12, 0, 3, 3))]
)
def test_no_channels_and_no_batch(sizes: tuple[int, ...], weight_sizes: tuple[int, ...]) -> None:
    """Without channels torch gives a result without channels."""
    results = []
    for device in ("cpu", "xla"):
        x, weight, bias = (torch.ones(shape, device=device, requires_grad=True) for shape in (sizes, weight_sizes, weight_sizes[:1]))
        convolve = torch.nn.functional.conv1d if len(sizes) == 3 else torch.nn.functional.conv2d
        result = convolve(x, weight, bias)
        result.sum().backward()
        gradients = [tensor.grad for tensor in (x, weight, bias) if tensor.grad is not None]
        results.append([result.detach().cpu(), *(gradient.cpu() for gradient in gradients)])
    assert len(results[0]) == 4
    torch.testing.assert_close(results[1], results[0])
