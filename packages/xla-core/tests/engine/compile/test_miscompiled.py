"""Programs that XLA:CPU computes wrongly when it is told nothing: the results here are those of numpy and of CPU torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import torch_xla

# Shape, the dimensions that each factor has, the dimensions that are summed: YNNPACK gave other numbers at each run, NaN among them.
PRODUCTS = [
    ([16, 4, 3, 5, 2, 8], [0, 1, 3, 4], [0, 2, 3], [3]),
    ([5, 8, 2, 3, 2, 16, 3], [0, 1, 2, 4, 5, 6], [0, 1, 6], [5]),
    ([5, 8, 8, 1, 8, 2, 2, 16], [2, 5, 6, 7], [4, 5, 6, 7], [6]),
]


@pytest.mark.parametrize(("shape", "first", "second", "summed"), PRODUCTS, ids=lambda each: "x".join(map(str, each)))
def test_sums_of_broadcast_products(shape: list[int], first: list[int], second: list[int], summed: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    factors = [torch.randn([size if dim in dims else 1 for dim, size in enumerate(shape)], generator=generator) for dims in (first, second)]
    a, b = (factor.to("xla").expand(shape) for factor in factors)
    expected = (factors[0].double().expand(shape) * factors[1].double().expand(shape)).sum(summed)
    for _ in range(3):
        torch.testing.assert_close((a * b).sum(summed).cpu().double(), expected, rtol=1e-4, atol=1e-4)


def shifted(device: str, in_place: bool) -> torch.Tensor:
    """f32[3, 8], its first two rows copied over its last two; they are seen as f32[2, 4, 2] then, so that XLA does not see the overlap."""
    start = torch.arange(3.0, device=device).view(3, 1)
    torch_xla.sync()
    x = start[:, :1].view(3, 1, 1) + torch.arange(8.0, device=device).view(4, 2)
    target = x if in_place else x.clone()
    target.view(3, 8)[1:] = x[:2].clone().view(2, 8)
    return target


@pytest.mark.parametrize("in_place", [False, True])
def test_a_block_is_read_before_it_is_written_over(in_place: bool) -> None:
    torch.testing.assert_close(shifted("xla", in_place).cpu(), shifted("cpu", in_place), rtol=0, atol=0)


def test_bits_are_read_before_they_are_written_over() -> None:
    seen = []
    for device in ("cpu", "xla"):
        x = torch.arange(24.0, dtype=torch.float64).view(3, 8).to(device)
        x.view(torch.float32)[1:].copy_(x.view(torch.float32)[:2].clone())
        seen.append(x.cpu())
    np.testing.assert_array_equal(seen[1].numpy(), seen[0].numpy())
