"""A graph of 5,000 operations: recorded, compiled and read without a recursion limit in the way."""

from __future__ import annotations

import sys

import pytest
import torch

import torch_xla
from xla_core.base import config
from xla_core.engine.graph.pending_graph import NO_LIMIT
from xla_core.engine.runtime.client import current_recorder

OPERATIONS = 5_000


def test_five_thousand_operations_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_xla.sync()
    recorder = current_recorder()
    monkeypatch.setattr(recorder.pending_graph, "limit", NO_LIMIT)
    limit = sys.getrecursionlimit()
    value = torch.zeros(4).to("xla")
    one = torch.ones(4).to("xla")
    for _ in range(OPERATIONS):
        value = value + one
    assert len(recorder.pending_graph.entries) >= OPERATIONS
    with config.override(config.MAX_PENDING, 0):
        assert value.tolist() == [float(OPERATIONS)] * 4
    assert sys.getrecursionlimit() == limit
    torch_xla.sync()
