"""Grouped products against CPU torch: rows, columns and terms in groups, empty ones too, with gradients."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torch_xla.debug.metrics import clear_counters, executed_fallback_ops
from xla_core.ops.nn.grouped import group_tiles
from xla_core.testing.lowering import check_lowering

ENDS = torch.tensor([2, 2, 8], dtype=torch.int32)
# The second factor of the last one is a transposed view, as in linear layers.
SHAPES = {
    "rows": ((8, 24), (3, 24, 16), ENDS, False),
    "columns": ((3, 24, 16), (16, 8), ENDS, False),
    "terms": ((24, 8), (8, 16), ENDS, False),
    "batches": ((3, 4, 8), (3, 8, 16), None, False),
    "rows, transposed": ((8, 24), (3, 40, 24), ENDS, True),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def factors(kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None]:
    torch.manual_seed(5)
    left, right, ends, transposed = SHAPES[kind]
    second = torch.randn(right).to(dtype)
    return torch.randn(left).to(dtype), second.transpose(-1, -2) if transposed else second, ends


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", SHAPES)
def test_products(kind: str, dtype: torch.dtype) -> None:
    a, b, ends = factors(kind, dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    check_lowering(torch.ops.aten._grouped_mm.default, a, b, ends, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_on_the_device(kind: str) -> None:
    a, b, ends = factors(kind, torch.float32)
    found: list[list[Tensor]] = []
    clear_counters()
    for device in ("cpu", "xla"):
        left, right = a.to(device).detach().requires_grad_(), b.to(device).detach().requires_grad_()
        product = torch.nn.functional.grouped_mm(left, right, offs=None if ends is None else ends.to(device))
        (product * torch.arange(product.numel(), device=device).view(product.shape)).sum().backward()
        assert left.grad is not None and right.grad is not None
        found.append([product.detach().cpu(), left.grad.cpu(), right.grad.cpu()])
    for ours, theirs in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-3)
    assert executed_fallback_ops() == []


@given(st.lists(st.integers(0, 700), min_size=4, max_size=9), st.sampled_from(["rows", "terms"]))
def test_many_rows_in_groups_of_any_sizes(ends: list[int], kind: str) -> None:
    """So many that the CPU's programs go over them by tiles: empty groups, groups of all rows, rows in none."""
    rows, groups = 700, len(ends)
    torch.manual_seed(groups)
    ends = sorted(ends)
    a, b = (torch.randn(rows, 6), torch.randn(groups, 6, 4)) if kind == "rows" else (torch.randn(6, rows), torch.randn(rows, 4))
    found = torch.nn.functional.grouped_mm(a.to("xla"), b.to("xla"), offs=torch.tensor(ends, dtype=torch.int32, device="xla")).cpu()
    spans = list(pairwise([0, *ends]))
    if kind == "rows":
        expected = torch.cat([*(a[i:j] @ b[group] for group, (i, j) in enumerate(spans)), torch.zeros(rows - ends[-1], 4)])
    else:
        expected = torch.stack([a[:, i:j] @ b[i:j] for i, j in spans])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["rows", "columns", "terms"])
def test_tiles_of_every_dtype(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shapes = {"rows": ((1024, 16), (4, 16, 8)), "columns": ((4, 8, 16), (16, 1024)), "terms": ((16, 1024), (1024, 8))}
    a, b = (torch.randn(shape).to(dtype) for shape in shapes[kind])
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    ends = torch.tensor([200, 200, 900, 1024], dtype=torch.int32)
    check_lowering(torch.ops.aten._grouped_mm.default, a, b, ends, rtol=tolerance, atol=tolerance)


def test_what_is_infinite_stays_in_its_group() -> None:
    torch.manual_seed(0)
    ends = torch.tensor([300, 300, 800, 1024], dtype=torch.int32)
    a, b = torch.randn(1024, 8), torch.randn(1024, 8)
    a[300:800] = b[300:800] = torch.inf
    found = torch.nn.functional.grouped_mm(a.t().to("xla"), b.to("xla"), offs=ends.to("xla")).cpu()
    for group, (start, end) in enumerate([(0, 300), (300, 300), (300, 800), (800, 1024)]):
        torch.testing.assert_close(found[group], a[start:end].t() @ b[start:end], rtol=1e-4, atol=1e-4)


def test_derivatives_of_jax_through_tiles() -> None:
    """In every mode: those of the grouped product that JAX has."""
    ends = jnp.array([100, 100, 512, 1000], jnp.int32)
    sizes, height = jnp.diff(ends, prepend=0), group_tiles.height(1024, 4)
    assert height is not None
    keys = jax.random.split(jax.random.key(0), 4)
    a, b = jax.random.normal(keys[0], (1024, 8)), jax.random.normal(keys[1], (4, 8, 4))
    tangents = jax.random.normal(keys[2], a.shape), jax.random.normal(keys[3], b.shape)

    def tiled(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sin(group_tiles.rows_by_groups(a, b, ends, height)).sum()

    def ragged(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sin(jax.lax.ragged_dot(a, b, sizes)).sum()

    def derivatives(f: Any) -> Any:
        gradients = jax.grad(f, (0, 1))
        return jax.jvp(f, (a, b), tangents), gradients(a, b), jax.jvp(gradients, (a, b), tangents)

    for found, expected in zip(jax.tree.leaves(derivatives(tiled)), jax.tree.leaves(derivatives(ragged)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_what_is_in_no_group_gives_zeros() -> None:
    """Where the CPU leaves what was in memory."""
    ends = torch.tensor([1, 3], dtype=torch.int32, device="xla")
    found = torch.nn.functional.grouped_mm(torch.ones(5, 8, device="xla"), torch.ones(2, 8, 4, device="xla"), offs=ends)
    assert found[:, 0].tolist() == [8.0, 8.0, 8.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [((3, 9, 16), torch.float32, "must match"), ((3, 24, 16), torch.float64, "got Double")],
    ids=["sizes", "dtype"],
)
def test_refuses_what_the_cpu_refuses(shape: tuple[int, ...], dtype: torch.dtype, said: str) -> None:
    a, b = torch.ones(8, 24, dtype=dtype, device="xla"), torch.ones(shape, dtype=dtype, device="xla")
    with pytest.raises(RuntimeError, match=said):
        torch.nn.functional.grouped_mm(a, b, offs=ENDS.to("xla"))
