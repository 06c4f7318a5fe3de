"""The line that made each live buffer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest
import torch

import torch_xla
from xla_debug.core import graph, metrics
from xla_debug.recording import memory
from xla_debug.recording.collector import Collector
from xla_debug.recording.memory import AllocationSites, MemoryMonitor
from xla_debug.run_report.schema import HOST, TOOL


def test_buffers_are_known_by_their_lines_as_long_as_they_live() -> None:
    sites = AllocationSites()
    remove = graph.register_wrapper(sites.wrap)
    try:
        kept = []
        for _ in range(3):
            made = torch.ones(101, device="xla") * 3
            torch_xla.sync()
            kept.append(made)
            del made
            sites.update()
        buffers = [found.array for found in metrics.live_buffers() if found.array.shape == (101,)]
        lines = [sites.line(buffer) for buffer in buffers]
        assert len(lines) == 3 and len(set(lines)) == 1 and str(lines[0]).rpartition(":")[0] == __file__
        assert sites.line(jnp.ones(101)) is None
        count = len(sites._sites)
        kept.clear()
        del buffers
        sites.update()
        assert len(sites._sites) == count - 3
    finally:
        remove()


def test_the_last_result_of_a_program_is_of_no_line() -> None:
    """It is alive as long as the program runs, often where a buffer was that is gone."""
    sites = AllocationSites()
    buffers = [jnp.full(103, float(number)) for number in range(2)]
    graph: Any = SimpleNamespace(results=lambda: [SimpleNamespace(line="train.py:1")])
    run = sites.wrap(graph, lambda first, last: [first, last])
    run(buffers[0], buffers[1])
    sites.update()
    assert [sites.line(buffer) for buffer in buffers] == ["train.py:1", None]
    run(buffers[1], buffers[0])
    sites.update()
    assert [sites.line(buffer) for buffer in buffers] == [None, "train.py:1"]


@pytest.mark.parametrize("snapshot_s", [0.01, 0.1, 2.0])
def test_snapshots_take_no_more_of_a_run_than_their_share(snapshot_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first one on, whatever they cost, by a clock of the test's own."""
    now = [100.0]
    taken: list[float] = []

    def slow() -> list[metrics.LiveBuffer]:
        now[0] += snapshot_s
        taken.append(now[0])
        return []

    monkeypatch.setattr(memory, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(memory, "sys", SimpleNamespace(getallocatedblocks=lambda: int(snapshot_s / memory._SECONDS_PER_BLOCK)))
    monkeypatch.setattr(memory.metrics_abi, "live_buffers", slow)
    monitor = MemoryMonitor()
    for step in range(1, 2**17):
        now[0] += 0.01
        monitor.after_step(step)
        assert snapshot_s * len(taken) <= (now[0] - 100.0) / 200 + 1e-9, step
    assert taken, "and in a long run there is one"


def test_buffers_are_listed_before_a_snapshot_can_be_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SNAPSHOT_SHARE", 0.0)
    monitor = MemoryMonitor()
    remove = graph.register_wrapper(monitor.allocation_sites.wrap)
    try:
        kept = torch.ones(107, 107, device="xla") * 3
        torch_xla.sync()
        assert monitor.after_step(4)
        (row,) = [live for live in monitor.live if live.shape == "float32[107, 107]"]
        (held,) = [found for found in metrics.live_buffers() if found.array.shape == (107, 107)]
        assert (row.count, row.nbytes, row.device) == (1, held.array.nbytes, held.device) and (row.line or "").startswith(__file__)
        assert kept.shape == (107, 107)
    finally:
        remove()


def test_the_timeline_shows_the_tool_s_own_time_as_the_tool_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as what the program did at a line of the user's, and no step has it."""
    collector = Collector()

    def count(step: int) -> bool:
        begin = time.perf_counter()
        while time.perf_counter() - begin < 0.05:
            pass
        return step == 6

    def batches() -> Iterator[torch.Tensor]:
        for _ in range(8):
            yield torch.ones(5)

    monkeypatch.setattr(collector._memory, "after_step", count)
    collector.start()
    try:
        for batch in batches():
            kept = batch.to("xla") + 1
            collector._next_check = 5  # as if each count were due
            torch_xla.sync()
        replica = collector.replica(finished=False)
    finally:
        collector.stop()
    assert kept.shape == (5,)
    (own,) = [span for span in replica.spans if span.phase == TOOL]
    assert own.track == HOST and own.line is None and own.ms >= 50
    end_s = own.start_s + own.ms / 1e3
    inside = [span for span in replica.spans if span.track == HOST and span is not own and own.start_s < span.start_s < end_s - 1e-5]
    assert inside == []
