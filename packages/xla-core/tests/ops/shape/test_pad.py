"""Padding and its gradients against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import xla_core.ops.shape.pad  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering

A = torch.ops.aten
PADS: dict[int, list[Any]] = {
    1: [A.reflection_pad1d.default, A.replication_pad1d.default],
    2: [A.reflection_pad2d.default, A.replication_pad2d.default],
    3: [A.reflection_pad3d.default, A.replication_pad3d.default],
}
GRADIENTS: dict[int, list[Any]] = {
    1: [A.reflection_pad1d_backward.default, A.replication_pad1d_backward.default],
    2: [A.reflection_pad2d_backward.default, A.replication_pad2d_backward.default],
    3: [A.reflection_pad3d_backward.default, A.replication_pad3d_backward.default],
}
WIDTHS: dict[int, list[tuple[int, ...]]] = {
    1: [(2, 1), (0, 3), (-1, 2), (1, -2)],
    2: [(2, 1, 1, 0), (0, 0, 2, 2), (-1, 1, 0, -1)],
    3: [(1, 2, 0, 1, 1, 1)],
}
CASES = [(rank, which, widths) for rank, all_widths in WIDTHS.items() for widths in all_widths for which in (0, 1)]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.testing.make_tensor(shape, dtype=dtype, device="cpu", low=0, high=9)


@pytest.mark.parametrize(("rank", "which", "widths"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
def test_reflection_and_edges(rank: int, which: int, widths: Any, dtype: torch.dtype) -> None:
    # torch rounds every half-precision sum on its way, the device only the last
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    for lead in ((2, 3), (3,)):
        x = values(dtype, *lead, *(5, 4, 6)[-rank:])
        padded = PADS[rank][which](x, widths)
        check_lowering(PADS[rank][which], x, widths)
        check_lowering(GRADIENTS[rank][which], torch.randn_like(padded), x, widths, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.complex64], ids=str)
def test_constant(dtype: torch.dtype) -> None:
    x = values(dtype, 2, 3, 4)
    for widths in ((1, 2), (0, 0, 1, 1), (2, -1, -1, 0), (1, 1, 1, 1, 1, 1), (-4, 0), ()):
        check_lowering(A.constant_pad_nd.default, x, widths)
        check_lowering(A.constant_pad_nd.default, x, widths, 1)
    check_lowering(A.constant_pad_nd.default, values(dtype, 0, 2), (1, 0, 2, 1), 1)


def test_constant_that_is_not_a_number_of_the_dtype() -> None:
    check_lowering(A.constant_pad_nd.default, torch.ones(2), (1, 1), float("nan"))
    check_lowering(A.constant_pad_nd.default, torch.ones(2, dtype=torch.int64), (1, 1), 2.7)
