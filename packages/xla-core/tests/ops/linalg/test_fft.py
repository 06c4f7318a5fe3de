"""Fourier transform lowerings against CPU torch."""

from __future__ import annotations

import pytest
import torch

import xla_core.ops.linalg.fft  # noqa: F401 - registers the family
from xla_core.testing.lowering import check_lowering, lower_once

aten = torch.ops.aten
DIMS = [[1], [0, 2], [2, 0, 1], [0, 1, 2, 3]]
SHAPE = (3, 4, 5, 6)


@pytest.mark.parametrize("normalization", [0, 1, 2])
@pytest.mark.parametrize("dim", DIMS, ids=str)
def test_transforms(dim: list[int], normalization: int) -> None:
    real, values = torch.randn(SHAPE), torch.randn(SHAPE, dtype=torch.complex64)
    close = {"rtol": 1e-4, "atol": 1e-4}
    for forward in (True, False):
        check_lowering(aten._fft_c2c.default, values, dim, normalization, forward, **close)
    for onesided in (True, False):
        check_lowering(aten._fft_r2c.default, real, dim, normalization, onesided, **close)
    for size in (6, 7):
        half = torch.randn([size // 2 + 1 if i == dim[-1] % 4 else n for i, n in enumerate(SHAPE)], dtype=torch.complex64)
        # A spectrum of real values, so that no library's choice for an impossible imaginary part matters.
        spectrum = aten._fft_r2c(aten._fft_c2r(half, dim, 0, size), dim, 0, True)
        check_lowering(aten._fft_c2r.default, spectrum, dim, normalization, size, rtol=1e-4, atol=1e-2)


def test_double_precision() -> None:
    check_lowering(aten._fft_c2c.default, torch.randn(4, 6, dtype=torch.complex128), [0, 1], 0, True)
    check_lowering(aten._fft_r2c.default, torch.randn(4, 7, dtype=torch.float64), [1], 2, True)


def test_no_examples() -> None:
    """torch's own library refuses them; an empty result is what numpy gives."""
    (spectrum,) = lower_once(aten._fft_r2c.default, torch.empty(0, 3, dtype=torch.complex64), torch.randn(0, 4), [1], 0, True)
    assert spectrum.shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_frequencies(dtype: torch.dtype) -> None:
    for n in (1, 2, 7, 100):
        for make in (torch.fft.fftfreq, torch.fft.rfftfreq):
            mine, theirs = make(n, 0.1, dtype=dtype, device="xla"), make(n, 0.1, dtype=dtype)
            assert torch.equal(mine.cpu(), theirs) and torch.equal(torch.fft.fftshift(mine).cpu(), torch.fft.fftshift(theirs))
