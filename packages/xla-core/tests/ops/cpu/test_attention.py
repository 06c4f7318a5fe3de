"""Attention by blocks against torch in double precision: all sizes, masks, repeats and ways to cut it."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from xla_core.ops.cpu import attention
from xla_core.ops.table import Context

MASKS = ("none", "keys", "rows", "heads", "batches", "all", "added", "added to heads")


def mask_of(kind: str, sizes: tuple[int, int, int, int]) -> torch.Tensor | None:
    """A mask of a kind for (batches, heads, rows, keys); the last row of the one for rows sees nothing."""
    batches, heads, rows, keys = sizes
    if kind.startswith("added"):
        return torch.randn(heads if "heads" in kind else 1, rows, keys)
    shape = {"keys": (batches, 1, 1, keys), "rows": (rows, keys), "heads": (1, heads, rows, keys), "batches": (batches, 1, rows, keys)}
    shown = torch.rand(shape.get(kind, sizes)) < 0.7
    if kind == "rows":
        shown[-1] = False
    return None if kind == "none" else shown


def reference(operands: list[torch.Tensor], mask: torch.Tensor | None, is_causal: bool, scale: float) -> list[torch.Tensor]:
    """Output, logarithms and gradients, in double precision."""
    grad, query, key, value = (x.double() for x in operands)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    repeats = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(repeats, 1).mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).tril() == 0, -math.inf)
    weights = scores.softmax(-1).nan_to_num(0)
    output = weights @ value.repeat_interleave(repeats, 1)
    gradients = torch.autograd.grad(output, leaves, grad)
    return [output.detach(), scores.logsumexp(-1).detach(), *[gradient.nan_to_num(0) for gradient in gradients]]


def by_blocks(operands: list[torch.Tensor], mask: torch.Tensor | None, is_causal: bool, scale: float) -> list[torch.Tensor]:
    """The same by blocks."""
    grad, query, key, value = (x.numpy() for x in operands)
    shown = None if mask is None else mask.numpy()

    def both(*arrays: Any) -> tuple[jax.Array, ...]:
        output, sums = attention.attend(*arrays, shown, is_causal, scale)
        return output, sums, *attention.attend_backward(grad, *arrays, shown, output, sums, is_causal, scale)

    return [torch.from_numpy(np.array(x)) for x in jax.jit(both)(query, key, value)]


@settings(max_examples=8)
@given(st.data())
def test_any_problem_is_right(data: st.DataObject) -> None:
    batches, heads, repeats = (data.draw(st.integers(1, 3)) for _ in range(3))
    rows, keys = (data.draw(st.sampled_from([32, 64, 96, 97, 128, 150, 200])) for _ in range(2))
    width, value_width = (data.draw(st.sampled_from([1, 8, 24])) for _ in range(2))
    kind, is_causal = data.draw(st.sampled_from(MASKS)), data.draw(st.booleans())
    torch.manual_seed(0)
    sizes = [(heads * repeats, rows, value_width), (heads * repeats, rows, width), (heads, keys, width), (heads, keys, value_width)]
    operands = [torch.randn(batches, *shape) for shape in sizes]
    mask = mask_of(kind, (batches, heads * repeats, rows, keys))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_BLOCK", data.draw(st.sampled_from([1 << 11, 1 << 13, 1 << 15])))
        results = by_blocks(operands, mask, is_causal, 0.3)
    for mine, theirs in zip(results, reference(operands, mask, is_causal, 0.3), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes_stay(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    operands = [torch.randn(2, 2, 64, 16).to(dtype) for _ in range(4)]

    def both(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        output, sums = attention.attend(*arrays[1:], None, True, 0.25)
        return output, *attention.attend_backward(*arrays, None, output, sums, True, 0.25)

    with jax.enable_x64(True):
        results = [torch.from_dlpack(x) for x in jax.jit(both)(*[jax.dlpack.from_dlpack(x) for x in operands])]
    output, _, *gradients = reference(operands, None, True, 0.25)
    for mine, theirs in zip(results, [output, *gradients], strict=True):
        assert mine.dtype is dtype
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-2, atol=2e-2 if dtype is not torch.float64 else 1e-12)


def test_memory_is_linear_in_the_length() -> None:
    def temporary(length: int) -> int:
        x = jax.ShapeDtypeStruct((1, 4, length, 32), np.float32)

        def both(grad: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, ...]:
            output, sums = attention.attend(query, key, value, None, True, 0.2)
            return attention.attend_backward(grad, query, key, value, None, output, sums, True, 0.2)

        return int(jax.jit(both).lower(x, x, x, x).compile().memory_analysis().temp_size_in_bytes)

    assert temporary(4096) < 2.2 * temporary(2048), "the scores of one head alone are 64 MB"


def test_which_calls_are_computed_by_blocks() -> None:
    def chosen(query: tuple[int, ...], key: tuple[int, ...], context: Context) -> bool:
        arrays = [jax.ShapeDtypeStruct(shape, np.float32) for shape in (query, key, key)]
        return attention.in_blocks(context, *arrays, None)  # type: ignore[arg-type]

    cpu = Context((), platform="cpu")
    assert chosen((8, 8, 256, 32), (8, 8, 256, 32), cpu)
    assert chosen((8, 8, 256, 32), (8, 2, 256, 32), cpu)
    assert not chosen((8, 8, 1, 32), (8, 8, 4096, 32), cpu), "one query"
    assert not chosen((1, 8, 64, 32), (1, 8, 64, 32), cpu), "small"
    assert not chosen((8, 8, 256, 32), (1, 8, 256, 32), cpu), "keys for all batches"
    assert not chosen((8, 8, 256, 32), (8, 8, 256, 32), Context((), platform="tpu"))
