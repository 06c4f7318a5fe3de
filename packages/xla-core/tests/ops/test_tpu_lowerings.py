"""What TPUs get instead of what the CPU gets, run on the CPU: it gives what CPU torch gives."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xla_core.ops.checks import NOTHING, Check, Fault
from xla_core.ops.platforms import in_range, positions
from xla_core.ops.table import TABLE, Context
from xla_core.testing import check_lowering

aten = torch.ops.aten
X = torch.arange(24.0).reshape(4, 6).sin()
MAPS = torch.stack([torch.arange(70.0).sin(), torch.arange(70.0).cos().round()]).reshape(1, 2, 7, 10)
HEADS = torch.arange(2 * 3 * 5 * 4.0).reshape(2, 3, 5, 4).sin()
POSITIONS = torch.tensor([[3, 0, 1], [2, 2, 0]])


CALLS: list[Any] = [
    (aten.gather.default, X, 0, POSITIONS),
    (aten.index_select.default, X, 1, torch.tensor([5, 0, 0])),
    (aten.index.Tensor, X, [POSITIONS, torch.tensor([-1, 0, 5], dtype=torch.int32)]),
    (aten.index.Tensor, X, [None, POSITIONS - 4]),
    (aten.take.default, X, POSITIONS - 10),
    (aten.put.default, X, POSITIONS[0], torch.ones(3), True),
    (aten.scatter_add.default, X, 1, POSITIONS, torch.ones(2, 3)),
    (aten.index_add.default, X, 0, torch.tensor([3, 3]), torch.ones(2, 6)),
    (aten.index_fill.int_Scalar, X, 1, torch.tensor([-1, 2]), 7.0),
    (aten.index_put.default, X, [POSITIONS - 2, torch.tensor([1, 2, 3])], torch.ones(2, 3), True),
    (aten.index_put.default, X, [torch.tensor([True, False, True, True]), torch.tensor([5, 4, 3])], torch.ones(3)),
    (aten.embedding.default, X, POSITIONS),
    (aten.embedding_dense_backward.default, torch.ones(2, 3, 6), POSITIONS, 4, 2, True),
    (aten.one_hot.default, POSITIONS, 5),
]


@pytest.mark.parametrize("call", CALLS, ids=[f"{number}-{call[0]}" for number, call in enumerate(CALLS)])
def test_positions_of_32_bits(call: Any) -> None:
    check_lowering(*call, platform="tpu")


@pytest.mark.parametrize("ignored", [-100, 2, 1 << 40])
@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0, 1.0])], ids=["plain", "weighted"])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_losses_of_classes(ignored: int, weight: torch.Tensor | None, reduction: int) -> None:
    target = torch.tensor([2, 5, ignored, 1])
    check_lowering(aten.nll_loss_forward.default, X, target, weight, reduction, ignored, platform="tpu")
    total = aten.nll_loss_forward.default(X, target, weight, 1, ignored)[1]
    grad = torch.full((4,) if reduction == 0 else (), 1.5)
    check_lowering(aten.nll_loss_backward.default, grad, X, target, weight, reduction, ignored, total, platform="tpu")
    for platform in ("cpu", "tpu"):
        check_lowering(aten.nll_loss_forward.default, X[0], target[0], weight, 1, ignored, platform=platform)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [((2, 2), (2, 2), (0, 0)), ((3, 2), (2, 1), (1, 1)), ((3, 3), (1, 3), (1, 0))])
def test_pooling_by_the_platforms_own_instructions(kernel: Any, stride: Any, padding: Any, ceil: bool) -> None:
    pooling = kernel, stride, padding, (1, 1), ceil
    for maps in (MAPS, MAPS.to(torch.bfloat16), MAPS.round()):  # rounded: equal elements
        check_lowering(aten.max_pool2d_with_indices.default, maps, *pooling, platform="tpu")
        pooled, indices = aten.max_pool2d_with_indices.default(maps, *pooling)
        grad = torch.arange(1.0, pooled.numel() + 1).reshape(pooled.shape).to(maps.dtype)
        check_lowering(aten.max_pool2d_with_indices_backward.default, grad, maps, *pooling, indices, platform="tpu")


def test_a_pool_finds_nan() -> None:
    maps = MAPS.clone()
    maps[0, 0, 3, 3] = math.nan
    check_lowering(aten.max_pool2d_with_indices.default, maps, (3, 3), (2, 2), (1, 1), platform="tpu")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, torch.tensor([True, False, True, True, False])], ids=["all", "masked"])
def test_attention_as_its_compiler_knows_it(mask: torch.Tensor | None, causal: bool) -> None:
    if mask is not None and causal:
        pytest.skip("torch takes one of them")
    attn_mask = None if mask is None else mask.expand(2, 3, 5, 5).clone().float().log()
    flash = aten._scaled_dot_product_flash_attention_for_cpu.default
    check_lowering(flash, HEADS, HEADS.cos(), HEADS + 1, 0.0, causal, attn_mask=attn_mask, platform="tpu")
    out, logsumexp = flash(HEADS, HEADS.cos(), HEADS + 1, 0.0, causal, attn_mask=attn_mask)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    inputs = HEADS.flip(0), HEADS, HEADS.cos(), HEADS + 1, out, logsumexp
    check_lowering(backward, *inputs, 0.0, causal, attn_mask=attn_mask, platform="tpu")


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_attention_multiplies_halves(platform: str) -> None:
    flash, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
    halves = [part.to(torch.bfloat16) for part in (HEADS, HEADS.cos(), HEADS + 1)]
    check_lowering(flash, *halves, 0.0, True, platform=platform, rtol=2e-2, atol=2e-2)
    out, logsumexp = flash(*halves, 0.0, True)
    check_lowering(backward, halves[0].flip(0), *halves, out, logsumexp, 0.0, True, platform=platform, rtol=3e-2, atol=3e-2)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), st.integers(0, 2**31 - 2))
def test_wrong_positions_stay_wrong(values: list[int], size: int) -> None:
    index = np.array(values, np.int64)
    with jax.enable_x64(True):
        narrow = np.asarray(positions(index, size, "tpu"))  # type: ignore[arg-type]
        assert narrow.dtype == np.int32 and np.asarray(in_range(index, np.dtype(np.int64))).tolist() == values  # type: ignore[arg-type]
    for left, right in ((narrow < 0, index < 0), (narrow >= size, index >= size)):
        np.testing.assert_array_equal(left, right)
    inside = (index >= 0) & (index < size)
    np.testing.assert_array_equal(narrow[inside], index[inside])


def test_checks_count_in_32_bits() -> None:
    checks: list[Check] = []
    context = Context((jax.ShapeDtypeStruct((3, 6), np.float32),), checks=checks, platform="tpu")
    with jax.enable_x64(True):
        for index in ([0, 3, 1], [0, 4, -1], [0, 1 << 40, 0]):
            TABLE["aten::embedding"].lower(context, X.numpy(), np.array(index))
        values = [check.value for check in checks]
    assert {value.dtype for value in values} == {np.dtype(np.int32)} and {check.fault for check in checks} == {Fault.INDEX_SELECT}
    assert [int(value) for value in values] == [NOTHING[np.dtype(np.int32)], 4, 2**31 - 1]
