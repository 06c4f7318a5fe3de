"""Attention lowerings against CPU torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import xla_core.ops.nn.attention.attention
import xla_core.ops.nn.attention.multihead  # noqa: F401 - registers the family
from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.table import TABLE, Context
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
fused = aten._scaled_dot_product_fused_attention_overrideable
fused_backward = aten._scaled_dot_product_fused_attention_overrideable_backward
flash = aten._scaled_dot_product_flash_attention_for_cpu
flash_backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(5)
    yield


def qkv(query: tuple[int, ...], keys: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Query, key and value."""
    return [torch.randn(shape, dtype=dtype) for shape in (query, keys, keys)]


def masks() -> list[tuple[str, torch.Tensor | None]]:
    """Masks for 4 queries and 6 keys in (2, 3) batches and heads."""
    some = torch.rand(2, 1, 4, 6) < 0.7
    some[..., 0] = True
    return [("none", None), ("boolean", some), ("float", torch.randn(4, 6)), ("per-head", torch.randn(2, 3, 4, 6))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_flash_attention(is_causal: bool, scale: float | None, dtype: torch.dtype) -> None:
    query, key, value = qkv((2, 3, 4, 8), (2, 3, 6, 8), dtype)
    check_lowering(flash.default, query, key, value, 0.0, is_causal, scale=scale, **CLOSE)
    output, logsumexp = flash(query, key, value, 0.0, is_causal, scale=scale)
    arguments = (torch.randn_like(output), query, key, value, output, logsumexp, 0.0, is_causal)
    check_lowering(flash_backward.default, *arguments, scale=scale, **CLOSE)


@pytest.mark.parametrize("mask", [mask for _, mask in masks()], ids=[name for name, _ in masks()])
def test_fused_attention(mask: torch.Tensor | None) -> None:
    """Against torch's own composition and its gradients, those of the mask included."""
    query, key, value = inputs = [x.requires_grad_() for x in qkv((2, 3, 4, 8), (2, 3, 6, 8))]
    trained = mask is not None and mask.is_floating_point()
    if mask is not None and trained:
        mask = mask.clone().requires_grad_()
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    inferred = [expected, torch.empty(2, 3, 4), None, None, None, None, torch.zeros((), dtype=torch.int64), None, None]
    output, logsumexp, *rest = lower_once(fused.default, inferred, *inputs, mask)
    torch.testing.assert_close(output, expected.detach(), **CLOSE)
    assert [None if r is None else tuple(r.shape) for r in rest] == [None, None, None, None, (), None, None]
    grad = torch.randn_like(expected)
    wanted = [*inputs, mask] if trained else inputs
    gradients = torch.autograd.grad(expected, [w for w in wanted if w is not None], grad)
    got = lower_once(
        fused_backward.default,
        [*gradients, *([] if trained else [None])],
        *(grad, *inputs, mask, [True, True, True, trained], output, logsumexp, None, None, 4, 6, 0.0, False, None, None),
    )
    for mine, theirs in zip(got, gradients, strict=False):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_rows_masked_throughout_are_zero() -> None:
    query, key, value = qkv((1, 1, 3, 4), (1, 1, 3, 4))
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    output, logsumexp, *_ = lower_once(fused.default, [expected, torch.empty(1, 1, 3)], query, key, value, mask)
    torch.testing.assert_close(output, expected, **CLOSE)
    arguments = (torch.ones_like(output), query, key, value, mask, [True] * 4, output, logsumexp, None, None, 3, 3, 0.0, False, None, None)
    for gradient in lower_once(fused_backward.default, [query, key, value], *arguments):
        assert torch.isfinite(gradient).all()


def test_grouped_query_attention() -> None:
    query, key, value = inputs = [x.requires_grad_() for x in qkv((2, 6, 4, 8), (2, 2, 5, 8))]
    expected = scaled_dot_product_attention(query, key, value, enable_gqa=True)
    output, logsumexp, *_ = lower_once(fused.default, [expected, torch.empty(2, 6, 4)], *inputs)
    torch.testing.assert_close(output, expected.detach(), **CLOSE)
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, inputs, grad)
    arguments = (grad, *inputs, None, [True] * 4, output, logsumexp, None, None, 4, 5, 0.0, False, None, None)
    for mine, theirs in zip(lower_once(fused_backward.default, gradients, *arguments), gradients, strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)


def test_math_attention() -> None:
    query, key, value = qkv((2, 3, 4, 8), (2, 3, 6, 8))
    for name, mask in masks():
        if name != "boolean":
            check_lowering(aten._scaled_dot_product_attention_math.default, query, key, value, mask, **CLOSE)
    check_lowering(aten._scaled_dot_product_attention_math.default, query[0], key[0], value[0], None, 0.0, True, scale=0.5, **CLOSE)


def test_dropout_names_the_way_out() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"SDPBackend\.MATH"):
        TABLE["aten::_scaled_dot_product_flash_attention_for_cpu"].lower(Context(()), *[jax.numpy.ones((1, 1, 2, 2))] * 3, 0.5)


@pytest.mark.parametrize("mask_type", [None, 0, 1, 2])
@pytest.mark.parametrize("average", [True, False])
def test_multi_head_attention(mask_type: int | None, average: bool) -> None:
    x = torch.randn(2, 4, 8)
    parameters = (torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8))
    shapes = {0: (4, 4), 1: (2, 4), 2: (2, 2, 4, 4)}
    mask = None if mask_type is None else torch.rand(shapes[mask_type]) < 0.4
    if mask is not None:
        mask[..., 0] = False
    arguments = (x, x, x, 8, 2, *parameters, mask, True, average, mask_type)
    check_lowering(aten._native_multi_head_attention.default, *arguments, **CLOSE)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("use_gelu", [True, False])
def test_transformer_encoder_layer(norm_first: bool, use_gelu: bool) -> None:
    attention = (torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8))
    rest: list[Any] = [torch.randn(shape) for shape in ((8,), (8,), (8,), (8,), (16, 8), (16,), (8, 16), (8,))]
    arguments = (torch.randn(2, 4, 8), 8, 2, *attention, use_gelu, norm_first, 1e-5, *rest)
    check_lowering(aten._transformer_encoder_layer_fwd.default, *arguments, rtol=1e-3, atol=1e-3)
