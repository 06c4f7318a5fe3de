"""Listeners and passes of this package keep the contracts of the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from xla_core.testing import EventSinkContract, GraphPassContract, check_reports
from xla_debug import reports
from xla_debug.analysis.slowdown_warnings import SlowdownWarnings
from xla_debug.core import events, texts
from xla_debug.core import graph as graph_abi
from xla_debug.graphs import graph_text


class TestSlowdownWarnings(EventSinkContract):
    """The advice that PT_XLA_DEBUG asks for."""

    @pytest.fixture(autouse=True)
    def target(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "advice.txt")

    def start(self) -> Callable[[], None]:
        return events.subscribe(SlowdownWarnings(self.path).note)


class TestReadingGraphs(GraphPassContract):
    """A pass that watches: each program is read back from its text, as the pages that draw it do."""

    def graph_pass(self, graph: graph_abi.Graph) -> None:
        read = graph_text.parse(texts.graph_text(graph))
        names = [node.name for node in read.nodes if node.kind is graph_text.NodeKind.OPERATION]
        assert names == [operation.name for operation in graph.operations()]

    def programs(self) -> Mapping[str, Callable[[torch.device], Any]]:
        def product(device: torch.device) -> torch.Tensor:
            x = torch.arange(6.0).reshape(2, 3).to(device)
            return (x @ x.T).softmax(0)

        def several(device: torch.device) -> list[torch.Tensor]:
            x = torch.linspace(-1, 1, 8).to(device)
            x = x.clone().mul_(3)
            return [*torch.aminmax(x), *x.split(4)]

        return {"product": product, "several results": several}


def test_reports_keep_their_contract() -> None:
    check_reports(reports)
