"""The line that made each live buffer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import torch

import torch_xla
from xla_debug.core import graph, metrics
from xla_debug.recording.memory import AllocationSites


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
