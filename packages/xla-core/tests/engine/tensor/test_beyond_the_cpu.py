"""Dtypes that torch computes on accelerators and not on the CPU: programs choose by `device.type != "cpu"`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F


def test_truth_values() -> None:
    x = torch.tensor([True, False, True])
    assert x.to("xla").abs().tolist() == [True, False, True] and x.to("xla").abs_().dtype == torch.bool
    values = [x.to("xla"), torch.tensor([-2.0], device="xla")]
    assert [each.tolist() for each in torch._foreach_abs(values)] == [[True, False, True], [2.0]]
    torch._foreach_abs_(values)
    assert values[1].tolist() == [2.0]
    assert torch.eye(3, dtype=torch.bool, device="xla").trace().item() == 3
    assert F.softsign(x.to("xla")).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_sums_of_complex_numbers_without_nan(dtype: torch.dtype) -> None:
    x = torch.tensor([1 + 2j, complex("nan"), complex(1, float("nan")), 3], dtype=dtype, device="xla")
    assert x.nansum().item() == 4 + 2j and x.nanmean().item() == 2 + 1j and x.nansum(0).dtype == dtype


def test_half_precision() -> None:
    x = torch.tensor([-1.0, 2.0], dtype=torch.float16, device="xla")
    assert F.rrelu(x, 0.25, 0.25, training=True).tolist() == F.rrelu(x, 0.25, 0.25).tolist() == [-0.25, 2]


HALF = {
    "avg_pool3d": lambda x: F.avg_pool3d(x.reshape(1, 2, 2, 3), 2, 1),
    "interpolate_antialiased": lambda x: F.interpolate(x.reshape(1, 1, 3, 4), size=(2, 5), mode="bilinear", antialias=True),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x.reshape(3, 4), torch.tensor([0, 3, 1], device=x.device)),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x.reshape(3, 4), torch.tensor([[3, 0, -1, 1]] * 3, device=x.device)),
    "rrelu": lambda x: F.rrelu(x, 0.25, 0.25, training=True),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", HALF)
def test_half_precision_of_accelerators(name: str, dtype: torch.dtype) -> None:
    results = []
    for device, wide in (("xla", dtype), ("cpu", torch.float32)):
        x = torch.linspace(-1, 1, 12).to(dtype).to(device, wide).requires_grad_()
        result = HALF[name](x)
        result.square().sum().backward()
        assert result.dtype == wide and x.grad is not None and x.grad.dtype == wide
        results.append((result.float().cpu(), x.grad.float().cpu()))
    torch.testing.assert_close(*results, rtol=0.02, atol=0.02)


LINEAR_ALGEBRA: dict[str, Callable[[torch.Tensor], object]] = {
    "cdist": lambda x: torch.cdist(x, x),
    "cholesky": torch.linalg.cholesky,
    "cholesky_ex": torch.linalg.cholesky_ex,
    "det": torch.linalg.det,
    "eig": torch.linalg.eig,
    "eigh": torch.linalg.eigh,
    "inv": torch.linalg.inv,
    "lu_factor": torch.linalg.lu_factor,
    "qr": torch.linalg.qr,
    "solve": lambda x: torch.linalg.solve(x, x),
    "solve_triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
    "svd": torch.linalg.svd,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_half_precision_that_no_device_of_torch_takes_is_refused_at_the_call(name: str, dtype: torch.dtype) -> None:
    for device in ("cpu", "xla"):
        with pytest.raises((NotImplementedError, RuntimeError), match="not implemented for '(Half|BFloat16)'|Low precision dtypes"):
            LINEAR_ALGEBRA[name](torch.eye(3).to(device, dtype))


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
