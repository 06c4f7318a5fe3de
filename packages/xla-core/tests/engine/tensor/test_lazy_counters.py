"""Tensors and buffers alive, counted without a walk, beside what the garbage collector has."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import torch_xla
from xla_core.base import metrics
from xla_core.engine.tensor.lazy_counters import LiveObjects, walked

NAMES = ("CreateXlaTensor", "DestroyXlaTensor", "CreateDataHandles", "DestroyDataHandles")


@pytest.fixture(autouse=True)
def only_ours_go() -> Iterator[None]:
    """No garbage of other tests is collected between two counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Training:
    """A net and what a loop keeps of it: losses and a view."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(5, 3).to("xla")
        self.optimizer = torch.optim.Adam(self.net.parameters())
        self.kept: list[torch.Tensor] = []

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.net(torch.ones(2, 5, device="xla")).sum()
        loss.backward()
        self.optimizer.step()
        self.kept += [loss.detach(), loss.detach() * 2, self.net.weight.detach()[0]]


def test_as_many_are_alive_as_the_garbage_collector_has() -> None:
    training = Training()
    training.step()  # the first one imports what names the class
    live = LiveObjects()
    assert live.count() == walked(), "the first time it asks"
    for _ in range(3):
        training.step()
        assert live.count() == walked(), "pending"
        torch_xla.sync()
        assert live.count() == walked(), "computed"
    before = live.count()
    training.kept.clear()
    assert live.count() == walked() and live.count()[0] == before[0] - 12


def test_what_is_gone_is_counted_without_a_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    Training().step()
    metrics.snapshot()
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("walks over all objects"))
    before = metrics.snapshot().counters
    tensors = [torch.full((3,), float(number), device="xla") + 1 for number in range(20)]
    torch_xla.sync()
    between = metrics.snapshot().counters
    del tensors
    after = metrics.snapshot().counters
    assert [between[name] - before[name] for name in NAMES] == [40, 20, 20, 0]
    assert [after[name] - between[name] for name in NAMES] == [0, 20, 0, 20]
