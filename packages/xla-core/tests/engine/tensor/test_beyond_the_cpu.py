"""Dtypes that torch computes on accelerators and not on the CPU: programs choose by `device.type != "cpu"`."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F


def test_truth_values() -> None:
    x = torch.tensor([True, False, True])
    assert x.to("xla").abs().tolist() == [True, False, True] and x.to("xla").abs_().dtype == torch.bool
    assert torch.eye(3, dtype=torch.bool, device="xla").trace().item() == 3
    assert F.softsign(x.to("xla")).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_sums_of_complex_numbers_without_nan(dtype: torch.dtype) -> None:
    x = torch.tensor([1 + 2j, complex("nan"), complex(1, float("nan")), 3], dtype=dtype, device="xla")
    assert x.nansum().item() == 4 + 2j and x.nanmean().item() == 2 + 1j and x.nansum(0).dtype == dtype


def test_half_precision() -> None:
    x = torch.tensor([-1.0, 2.0], dtype=torch.float16, device="xla")
    assert F.rrelu(x, 0.25, 0.25, training=True).tolist() == F.rrelu(x, 0.25, 0.25).tolist() == [-0.25, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_batch_norm_with_statistics_in_float32_has_gradients(dtype: torch.dtype) -> None:
    """On accelerators the statistics of half precision are float32; the CPU's kernel wants them in half."""
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(shape).to(dtype) for shape in ((4, 3, 5), (3,), (3,)))
    gradients = []
    for device, wide in (("xla", dtype), ("cpu", torch.float32)):
        given = [tensor.to(device, wide).requires_grad_() for tensor in (x, weight, bias)]
        statistics = torch.zeros(3, device=device, dtype=wide), torch.ones(3, device=device, dtype=wide)
        result = torch.ops.aten._batch_norm_with_update(*given, *statistics, 0.1, 1e-5)[0]
        (result * result.detach().sin()).sum().backward()
        gradients.append([tensor.grad.float().cpu() for tensor in given])  # type: ignore[union-attr]
    torch.testing.assert_close(*gradients, rtol=0.05, atol=0.05)
