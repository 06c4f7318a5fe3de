"""Pooling lowerings against CPU torch: windows of all kinds, indices, gradients, NaN and infinities."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch

import xla_core.ops.nn.avg_pool
import xla_core.ops.nn.max_pool  # noqa: F401 - registers the family
from xla_core.ops.table import TABLE, Context
from xla_core.testing.lowering import check_lowering

aten = torch.ops.aten

# shape, kernel, stride, padding, dilation, ceil_mode
MAX_2D: list[tuple[Any, ...]] = [
    ((2, 3, 8, 8), [2, 2], [2, 2], [0, 0], [1, 1], False),
    ((2, 3, 7, 9), [2, 2], [], [0, 0], [1, 1], True),
    ((2, 3, 7, 9), [3, 3], [2, 2], [1, 1], [1, 1], False),
    ((3, 7, 9), [3, 2], [2, 2], [1, 1], [1, 1], True),
    ((2, 3, 7, 9), [3, 3], [1, 1], [1, 1], [1, 1], False),
    ((2, 3, 9, 9), [2, 3], [2, 1], [1, 1], [2, 3], False),
    ((1, 2, 9, 9), [2, 2], [3, 4], [0, 0], [1, 1], False),
    ((0, 2, 6, 6), [2, 2], [2, 2], [0, 0], [1, 1], False),
]
AVERAGE_2D: list[tuple[Any, ...]] = [
    ((2, 3, 8, 8), [2, 2], [2, 2], [0, 0], False, True, None),
    ((2, 3, 7, 9), [3, 2], [2, 2], [1, 1], True, True, None),
    ((2, 3, 7, 9), [3, 3], [2, 1], [1, 1], True, False, None),
    ((3, 7, 9), [3, 3], [], [1, 0], False, False, 4),
    ((2, 3, 7, 7), [7, 7], [7, 7], [0, 0], False, True, None),
    ((1, 2, 9, 9), [2, 2], [3, 4], [0, 0], False, True, None),
    ((1, 1, 40, 20), [20, 17], [1, 1], [3, 0], False, True, None),
]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


@pytest.fixture(params=["cpu", "tpu"])
def _platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs as for this platform, which run here."""
    monkeypatch.setattr(jax, "default_backend", lambda: request.param)


@pytest.mark.usefixtures("_platform")
@pytest.mark.parametrize("case", MAX_2D, ids=str)
def test_max_pool2d(case: tuple[Any, ...]) -> None:
    shape, *window = case
    x = torch.randn(shape)
    check_lowering(aten.max_pool2d_with_indices.default, x, *window)
    output, indices = aten.max_pool2d_with_indices(x, *window)
    settings = (window[0], window[1] or window[0], *window[2:])
    check_lowering(aten.max_pool2d_with_indices_backward.default, torch.randn_like(output), x, *settings, indices)


def test_gpus_find_the_indices_again_for_the_gradient() -> None:
    x = torch.randn(2, 3, 9, 8).bfloat16()  # many are equal
    window = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    output, indices = aten.max_pool2d_with_indices(x, *window)
    grad = torch.randn_like(output)
    check_lowering(aten.max_pool2d_with_indices_backward.default, grad, x, *window, indices, platform="gpu")
    spec = TABLE["aten::max_pool2d_with_indices_backward"]
    arrays = [jax.ShapeDtypeStruct(tuple(each.shape), np.float32) for each in (grad, x)]
    context = Context((arrays[1],), platform="gpu")
    with jax.enable_x64(True):
        places = jax.ShapeDtypeStruct(tuple(grad.shape), np.int64)
        traced = jax.make_jaxpr(lambda grad, x, places: spec.lower(context, grad, x, *window, places))(*arrays, places).jaxpr
    read = [variable for equation in traced.eqns for variable in equation.invars]
    assert traced.invars[1] in read and traced.invars[2] not in read, "what the forward pass found is not held for it"


@pytest.mark.usefixtures("_platform")
@pytest.mark.parametrize("stride", [[2, 2, 2], [1, 2, 1]], ids=str)
def test_max_pool3d(stride: list[int]) -> None:
    window = ([2, 3, 2], stride, [1, 1, 0], [1, 1, 1], False)
    x = torch.randn(2, 2, 5, 6, 4)
    check_lowering(aten.max_pool3d_with_indices.default, x, *window)
    output, indices = aten.max_pool3d_with_indices(x, *window)
    check_lowering(aten.max_pool3d_with_indices_backward.default, torch.randn_like(output), x, *window, indices)


@pytest.mark.usefixtures("_platform")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
def test_max_pool_dtypes(dtype: torch.dtype) -> None:
    x = (torch.rand(1, 2, 6, 6) * 9).to(dtype)
    check_lowering(aten.max_pool2d_with_indices.default, x, [3, 3], [2, 2], [1, 1])


@pytest.mark.usefixtures("_platform")
@pytest.mark.parametrize("value", [float("nan"), -float("inf"), float("inf"), 1.0])
def test_max_pool_ties_and_nan(value: float) -> None:
    """The first of equal values is chosen, the last of NaNs, and never padding."""
    check_lowering(aten.max_pool2d_with_indices.default, torch.full((1, 1, 5, 5), value), [3, 3], [2, 2], [1, 1])
    mixed = torch.randn(1, 2, 6, 6)
    mixed[mixed > 0.5] = value
    check_lowering(aten.max_pool2d_with_indices.default, mixed, [3, 3], [1, 1], [1, 1])
    check_lowering(aten.max_pool2d_with_indices.default, torch.full((1, 1, 9, 9), -float("inf")), [2, 2], [1, 1], [1, 1], [3, 2])


def test_unread_indices_cost_nothing() -> None:
    spec = TABLE["aten::max_pool2d_with_indices"]
    inferred = (jax.ShapeDtypeStruct((1, 2, 4, 4), np.float32), jax.ShapeDtypeStruct((1, 2, 4, 4), np.int64))
    like = jax.ShapeDtypeStruct((1, 2, 8, 8), np.float32)
    with jax.enable_x64(True):
        text = jax.jit(lambda x: spec.lower(Context(inferred), x, [2, 2])[0]).lower(like).compile().as_text()
    assert text is not None
    assert "iota" not in text
    assert "select" not in text


def test_windows_are_reduced_at_once_on_tpus() -> None:
    """And looked up elsewhere, where that is faster."""
    spec = TABLE["aten::max_pool2d_with_indices_backward"]
    like, small = (jax.ShapeDtypeStruct((1, 2, size, size), np.float32) for size in (8, 4))
    places = jax.ShapeDtypeStruct(small.shape, np.int64)
    found = {}
    for platform in ("cpu", "gpu", "tpu"):
        for kernel in (2, 3):
            context, window = (
                Context((like,), platform=platform),
                ([kernel, kernel], [2, 2], [kernel // 2 * (kernel - 2)] * 2, [1, 1], False),
            )
            with jax.enable_x64(True):
                program = jax.make_jaxpr(lambda g, x, i, context=context, window=window: spec.lower(context, g, x, *window, i))
                found[platform, kernel] = "select_and_scatter_add" in str(program(small, like, places))
    assert [key for key, reduced in found.items() if reduced] == [("tpu", 2), ("tpu", 3)]


@pytest.mark.parametrize("out", [[1, 1], [3, 3], [4, 2], [5, 7], [8, 12]], ids=str)
def test_adaptive_max_pool2d(out: list[int]) -> None:
    x = torch.randn(2, 3, 8, 6)
    check_lowering(aten.adaptive_max_pool2d.default, x, out)
    output, indices = aten.adaptive_max_pool2d(x, out)
    check_lowering(aten.adaptive_max_pool2d_backward.default, torch.randn_like(output), x, indices)
    x[0, 0, 3] = float("nan")
    check_lowering(aten.adaptive_max_pool2d.default, x, out)


def test_adaptive_max_pool3d() -> None:
    x = torch.randn(2, 5, 6, 4)
    check_lowering(aten.adaptive_max_pool3d.default, x, [2, 3, 3])
    output, indices = aten.adaptive_max_pool3d(x, [2, 3, 3])
    check_lowering(aten.adaptive_max_pool3d_backward.default, torch.randn_like(output), x, indices)


@pytest.mark.usefixtures("_platform")
@pytest.mark.parametrize("case", AVERAGE_2D, ids=str)
def test_avg_pool2d(case: tuple[Any, ...]) -> None:
    shape, *window = case
    x = torch.randn(shape)
    check_lowering(aten.avg_pool2d.default, x, *window, rtol=1e-5, atol=1e-6)
    grad = torch.randn_like(aten.avg_pool2d(x, *window))
    settings = (window[0], window[1] or window[0], *window[2:])
    check_lowering(aten.avg_pool2d_backward.default, grad, x, *settings, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("_platform")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64], ids=str)
def test_avg_pool_dtypes(dtype: torch.dtype) -> None:
    x = (torch.randn(1, 2, 6, 6) * 9).to(dtype)
    check_lowering(aten.avg_pool2d.default, x, [3, 3], [2, 2], [1, 1], rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("_platform")
def test_avg_pool3d() -> None:
    x, window = torch.randn(2, 2, 5, 6, 4), ([2, 3, 2], [2, 1, 2], [1, 1, 0], True, False, None)
    check_lowering(aten.avg_pool3d.default, x, *window)
    check_lowering(aten.avg_pool3d_backward.default, torch.randn_like(aten.avg_pool3d(x, *window)), x, *window)


@pytest.mark.parametrize("out", [[1, 1], [3, 3], [4, 2], [5, 7], [8, 12]], ids=str)
def test_adaptive_avg_pool2d(out: list[int]) -> None:
    x = torch.randn(2, 3, 8, 6)
    check_lowering(aten._adaptive_avg_pool2d.default, x, out, rtol=1e-5, atol=1e-6)
    grad = torch.randn_like(aten._adaptive_avg_pool2d(x, out))
    check_lowering(aten._adaptive_avg_pool2d_backward.default, grad, x, rtol=1e-5, atol=1e-5)


def test_adaptive_average_keeps_infinity_in_its_bin() -> None:
    x = torch.randn(1, 1, 7, 7)
    x[0, 0, 0, 0] = float("inf")
    check_lowering(aten._adaptive_avg_pool2d.default, x, [3, 3])


def test_adaptive_avg_pool3d() -> None:
    x = torch.randn(2, 5, 6, 4)
    check_lowering(aten._adaptive_avg_pool3d.default, x, [2, 3, 3])
    grad = torch.randn(2, 2, 3, 3)
    check_lowering(aten._adaptive_avg_pool3d_backward.default, grad, x)


@pytest.mark.parametrize("rank", [2, 3])
def test_fractional_max_pool(rank: int) -> None:
    forward = aten.fractional_max_pool2d if rank == 2 else aten.fractional_max_pool3d
    backward = aten.fractional_max_pool2d_backward if rank == 2 else aten.fractional_max_pool3d_backward
    x, samples = torch.randn([2, 3, 9, 8, 7][: rank + 2]), torch.rand(2, 3, rank)
    kernel, out = [2, 3, 2][:rank], [4, 3, 5][:rank]
    check_lowering(forward.default, x, kernel, out, samples)
    output, indices = forward(x, kernel, out, samples)
    check_lowering(backward.default, torch.randn_like(output), x, kernel, out, indices)
    check_lowering(forward.default, x, kernel, out, torch.rand(4, 3, rank))
    check_lowering(forward.default, x[0], kernel, out, samples)
    for size in ((1, 3, rank), (2, 4, rank), (2, 3, rank + 1), (2, 3)):
        with pytest.raises(RuntimeError) as expected:
            forward(x, kernel, out, torch.rand(size))
        with pytest.raises(RuntimeError, match=re.escape(str(expected.value).splitlines()[0])):
            forward(x.to("xla"), kernel, out, torch.rand(size).to("xla"))


def test_max_unpool() -> None:
    output, indices = aten.max_pool2d_with_indices(torch.randn(2, 3, 6, 8), [2, 2])
    check_lowering(aten.max_unpool2d.default, output, indices, [6, 8])
    output, indices = aten.max_pool3d_with_indices(torch.randn(1, 2, 4, 4, 6), [2, 2, 2])
    check_lowering(aten.max_unpool3d.default, output, indices, [4, 4, 6], [2, 2, 2], [0, 0, 0])
