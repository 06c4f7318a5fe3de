"""Long loops need no more memory at their end than at their start: buffers, pending graph entries, programs, the process itself."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import torch
from torch import nn

import torch_xla
from xla_core.engine.compile import tiers
from xla_core.engine.compile.cache import programs
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.executor import wait_all

STEPS, WARM = 2000, 200
MIDDLE = (WARM + STEPS) // 2


@pytest.fixture(autouse=True)
def better_programs_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The better form of a program, which jax lowers anew, is there before anything is counted."""
    monkeypatch.setattr(tiers, "_MOST_USES", 2)


def resident_bytes() -> int:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measured(turn: Callable[[int], None]) -> dict[str, tuple[int, int]]:
    """How much there is of everything after a tenth of the turns, and after all of them; of bytes, how much came in either half."""
    seen: dict[str, list[int]] = {}
    for number in range(STEPS):
        turn(number)
        if number in (WARM, MIDDLE, STEPS - 1):
            wait_all()
            tiers.wait_for_background()
            gc.collect()
            pending_graph = current_recorder().pending_graph
            now = {
                "buffers": len(jax.live_arrays()),
                "entries": len(pending_graph.entries) + len(pending_graph.refs) + len(pending_graph.input_data) + len(pending_graph.reads),
                "programs": len(programs()),
                "objects": len(gc.get_objects()),
                "bytes": resident_bytes(),
            }
            for name, count in now.items():
                seen.setdefault(name, []).append(count)
    warm, middle, end = seen.pop("bytes")
    return {name: (counts[0], counts[-1]) for name, counts in seen.items()} | {"bytes": (middle - warm, end - middle)}


def check(grown: dict[str, tuple[int, int]], entries: int) -> None:
    """Bounds: nothing but noise."""
    assert grown["buffers"][1] <= grown["buffers"][0] + 2, grown
    assert grown["entries"][1] <= entries, grown
    assert grown["programs"][1] <= grown["programs"][0] + 2, grown
    assert grown["objects"][1] <= grown["objects"][0] + 300, grown
    # What a loop keeps comes in both halves. The process around it may get or give back more than that at one moment.
    assert min(grown["bytes"]) <= 8 << 20, grown


def test_a_training_loop_stays_flat() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2)).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    batch = torch.randn(4, 6)

    def turn(number: int) -> None:
        optimizer.zero_grad()
        model(batch.to("xla")).square().mean().backward()
        optimizer.step()
        schedule.step()
        torch_xla.sync()

    check(measured(turn), entries=8)


def test_reading_without_a_step_stays_flat() -> None:
    state = torch.zeros(16, device="xla")
    other = torch.ones(16, device="xla") * 3

    def turn(number: int) -> None:
        state.add_(1).mul_(0.5)
        _ = state * 2  # never needed by anybody
        assert state.sum().item() >= 0

    check(measured(turn), entries=4 * 2048)
    assert other.sum().item() == 48


def test_reading_views_and_slices_without_a_step_stays_flat() -> None:
    state = torch.zeros(4, 4, device="xla")

    def turn(number: int) -> None:
        state[number % 4, 1:].add_(1)
        assert state[number % 4].sum().item() > 0

    check(measured(turn), entries=4 * 2048)


def test_pending_work_that_dies_stays_flat() -> None:
    start = torch.ones(8, device="xla")
    torch_xla.sync()

    def turn(number: int) -> None:
        for _ in range(5):
            _ = (start + number).exp() * 2
        if number % 50 in (0, 49):
            torch_xla.sync()

    check(measured(turn), entries=8)


def test_moving_data_there_and_back_stays_flat() -> None:
    def turn(number: int) -> None:
        data = torch.full((32,), float(number)).to("xla")
        view = data[8:]
        view.add_(1)
        assert data.cpu()[-1].item() == number + 1
        if number % 10 == 0:
            torch_xla.sync()

    check(measured(turn), entries=4 * 2048)
