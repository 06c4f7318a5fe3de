"""Copies of views, writes through views and gradients of views against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xla_core.ops.shape.copies  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4)

READS: list[tuple[Any, torch.Tensor, tuple[Any, ...], dict[str, Any]]] = [
    (A.view_copy.default, X, ([4, -1],), {}),
    (A.view_copy.default, X, (), {"size": [24]}),
    (A.view_copy.dtype, X, (torch.int32,), {}),
    (A.view_copy.dtype, X, (torch.int16,), {}),
    (A.view_copy.dtype, X, (torch.float64,), {}),
    (A._unsafe_view.default, X, ([6, 4],), {}),
    (A._reshape_copy.default, X, ([3, -1],), {}),
    (A._reshape_alias_copy.default, X, ([6, 4], [4, 1]), {}),
    (A.t_copy.default, X[0], (), {}),
    (A.t_copy.default, X[0, 0], (), {}),
    (A.permute_copy.default, X, ([2, 0, -2],), {}),
    (A.transpose_copy.int, X, (0, -1), {}),
    (A.transpose_copy.int, X, (), {"dim1": 0, "dim0": 1}),
    (A.expand_copy.default, X[:, :1], ([5, 2, 3, -1],), {}),
    (A.expand_copy.default, X[:, :1], ([2, 3, 4],), {"implicit": True}),
    (A.select_copy.int, X, (1, -1), {}),
    (A.select_copy.int, X, (), {"index": 1, "dim": -1}),
    (A.slice_copy.Tensor, X, (2, 1, None, 2), {}),
    (A.slice_copy.Tensor, X, (), {"dim": -1, "end": -1}),
    (A.slice_copy.Tensor, X, (1, 2, 1), {}),
    (A.as_strided_copy.default, X, ([2, 2], [3, 5], 1), {}),
    (A.as_strided_copy.default, X, ([2, 2], [0, 1]), {}),
    (A.unsqueeze_copy.default, X, (-2,), {}),
    (A.squeeze_copy.default, X[:1], (), {}),
    (A.squeeze_copy.dim, X[:1], (0,), {}),
    (A.squeeze_copy.dim, X, (-1,), {}),
    (A.squeeze_copy.dims, X[:1, :1], ([0, -2],), {}),
    (A.diagonal_copy.default, X, (), {}),
    (A.diagonal_copy.default, X, (1, -1, 0), {}),
    (A.diagonal_copy.default, X, (), {"offset": -1, "dim2": 2}),
    (A.unfold_copy.default, X, (2, 2, 1), {}),
    (A.unfold_copy.default, X, (), {"dimension": -2, "size": 3, "step": 2}),
    (A.alias_copy.default, X, (), {}),
    (A.detach_copy.default, X, (), {}),
    (A.lift_fresh_copy.default, X, (), {}),
    (A.view_as_real_copy.default, X.to(torch.complex64), (), {}),
    (A.view_as_complex_copy.default, X[..., :2].contiguous(), (), {}),
    (A._conj_copy.default, torch.complex(X, -X), (), {}),
    (A._neg_view_copy.default, X, (), {}),
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize(("func", "x", "args", "kwargs"), READS, ids=lambda value: str(value) if isinstance(value, (tuple, dict)) else None)
def test_reads(func: Any, x: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check_lowering(func, x, *args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_writes(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check_lowering(A.select_scatter.default, x, torch.ones(2, 4, dtype=dtype), 1, -1)
    check_lowering(A.select_scatter.default, x, torch.ones(2, 3, dtype=dtype), index=0, dim=-1)
    check_lowering(A.slice_scatter.default, x, torch.ones(2, 3, 2, dtype=dtype), 2, 1, None, 2)
    check_lowering(A.slice_scatter.default, x, torch.ones(2, 1, 4, dtype=dtype), dim=1, start=-1)
    check_lowering(A.slice_scatter.default, x, torch.ones(2, 0, 4, dtype=dtype), 1, 2, 2)
    check_lowering(A.diagonal_scatter.default, x, torch.ones(4, 2, dtype=dtype))
    check_lowering(A.diagonal_scatter.default, x, torch.ones(3, 2, dtype=dtype), 1, 0, -1)
    check_lowering(A.diagonal_scatter.default, x, torch.ones(4, 0, dtype=dtype), 7)
    check_lowering(A.as_strided_scatter.default, x, torch.ones(2, 2, dtype=dtype), [2, 2], [7, 2], 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    check_lowering(A.select_backward.default, torch.ones(2, 4, dtype=dtype), [2, 3, 4], 1, -2)
    check_lowering(A.slice_backward.default, torch.ones(2, 3, 2, dtype=dtype), [2, 3, 5], -1, 1, 9223372036854775807, 2)
    check_lowering(A.slice_backward.default, torch.ones(2, 2, dtype=dtype), [5, 2], 0, -3, -1, 1)
    check_lowering(A.slice_backward.default, torch.ones(0, 2, dtype=dtype), [5, 2], 0, 7, 9, 1)
    check_lowering(A.diagonal_backward.default, torch.ones(4, 2, dtype=dtype), [2, 3, 4], 0, 0, 1)
    check_lowering(A.unfold_backward.default, torch.ones(2, 3, 3, dtype=dtype), [2, 5], 1, 3, 1)
    check_lowering(A.unfold_backward.default, torch.ones(2, 4, 3, dtype=dtype), [7, 4], 0, 3, 4)
    check_lowering(A.unfold_backward.default, torch.ones(1, dtype=dtype), [], 0, 1, 1)
