"""Grouped products against CPU torch: rows, columns and terms in groups, empty ones too, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torch_xla.debug.metrics import clear_counters, executed_fallback_ops
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
