"""Reductions over runs, and their gradients, against CPU torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xla_core.base import metrics

NAN = float("nan")
RUNS: dict[str, dict[str, Any]] = {
    "lengths": {"lengths": torch.tensor([2, 0, 3, 1])},
    "offsets": {"offsets": torch.tensor([0, 2, 2, 5, 6])},
    "not all": {"lengths": torch.tensor([2, 0, 3]), "unsafe": True},
    "rows": {"lengths": torch.tensor([[2, 1], [1, 2], [0, 3], [3, 0], [1, 2], [2, 1]]), "axis": 1},
}


def results(device: str, data: torch.Tensor, reduce: str, given: dict[str, Any]) -> list[torch.Tensor]:
    """The reduction and its gradient."""
    x = data.to(device).requires_grad_()
    placed = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
    out = torch.segment_reduce(x, reduce, **placed)
    weights = torch.arange(1.0, 1 + out.numel(), dtype=out.dtype).view(out.shape).to(device)
    return [out.detach().cpu(), torch.autograd.grad(out, x, weights)[0].cpu()]


@pytest.mark.parametrize("initial", [None, 2.0, 0.5])
@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segment_reduce(reduce: str, runs: str, initial: float | None) -> None:
    data = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    data[1, 0] = NAN
    data[2, 1] = data[4, 1] = data[5, 1] = 0.0
    data[:2, 2] = 1.0
    given = RUNS[runs] if initial is None else {**RUNS[runs], "initial": initial}
    seen: list[metrics.FallbackEvent] = []
    stop = metrics.subscribe(seen.append, metrics.FallbackEvent)
    try:
        for mine, theirs in zip(results("xla", data, reduce, given), results("cpu", data, reduce, given), strict=True):
            torch.testing.assert_close(mine, theirs, equal_nan=True)
    finally:
        stop()
    assert not seen


def test_segments_of_nothing() -> None:
    for device in ("cpu", "xla"):
        out = torch.segment_reduce(torch.empty(0, 2, device=device), "sum", lengths=torch.tensor([0, 0], device=device))
        assert out.tolist() == [[0, 0], [0, 0]]
