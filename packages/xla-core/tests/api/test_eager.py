"""Eager mode."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla
import torch_xla.experimental as experimental
from torch_xla.experimental import eager
from xla_core.base import deprecation, metrics
from xla_core.engine.runtime.executor import wait_all

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def lazy_again() -> Iterator[None]:
    """Each test starts and ends in lazy mode, with nothing pending."""
    torch_xla.sync()
    yield
    experimental.eager_mode(False)
    torch_xla.sync()


def counter(name: str) -> int:
    return metrics.counter(name)


def samples(name: str) -> int:
    metric = metrics.snapshot().metrics.get(name)
    return 0 if metric is None else metric.total_samples


def test_each_operation_runs_at_once() -> None:
    tensor = torch.arange(5.0).to("xla")
    experimental.eager_mode(True)
    assert experimental.is_eager_mode() and eager.is_eager_mode()
    executions = counter("ExecuteComputation")
    compiles = samples("EagerOpCompileTime")
    result = tensor * 3.25
    assert counter("ExecuteComputation") == executions + 1
    view = result[1:]
    view += 1
    assert result.tolist() == [0.0, 4.25, 7.5, 10.75, 14.0]
    compiled = counter("UncachedCompile")
    wait_all()
    torch_xla.sync()
    assert counter("UncachedCompile") == compiled
    assert samples("EagerOpCompileTime") > compiles
    assert samples("EagerOpExecuteTime") > 0
    experimental.eager_mode(False)
    executions = counter("ExecuteComputation")
    later = tensor * 2
    assert counter("ExecuteComputation") == executions
    assert later.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_eager_times_are_only_those_of_eager_operations() -> None:
    before = samples("EagerOpExecuteTime"), samples("EagerOpCompileTime")
    (torch.arange(7.0).to("xla") * 5).cpu()
    assert (samples("EagerOpExecuteTime"), samples("EagerOpCompileTime")) == before


def test_eager_mode_context_restores() -> None:
    with experimental.eager_mode_context(True):
        assert experimental.is_eager_mode()
        with experimental.eager_mode_context(False):
            assert not experimental.is_eager_mode()
        assert experimental.is_eager_mode()
    assert not experimental.is_eager_mode()


def test_eager_training_gives_the_lazy_result() -> None:
    def train() -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to("xla")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        inputs, losses = torch.arange(12.0).reshape(3, 4).to("xla"), []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    lazy = train()
    with experimental.eager_mode_context(True):
        assert train() == pytest.approx(lazy, rel=1e-4)


def test_eager_mode_starts_no_client(run: Run) -> None:
    code = """
        import torch, torch_xla.experimental as experimental
        from xla_core.base import metrics
        from xla_core.engine.runtime import client
        experimental.eager_mode(True)
        print(client.started())
        tensor = torch.ones(2).to("xla") * 2
        print(metrics.counter("ExecuteComputation"))
    """
    assert run(code).split() == ["False", "1"]


def test_eager_debug_variable(run: Run) -> None:
    code = """
        import torch, torch_xla.experimental as experimental
        from xla_core.base import metrics
        tensor = torch.ones(2).to("xla") * 2
        print(experimental.is_eager_mode(), metrics.counter("ExecuteComputation"))
    """
    assert run(code, XLA_USE_EAGER_DEBUG_MODE="1").split() == ["True", "1"]


def test_compile_traces_lazily_and_warns_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(deprecation, "_warned", set())
    with caplog.at_level(logging.WARNING, logger="torch_xla"):
        step = experimental.compile(lambda x: (x * 2 + 1).sum())
        experimental.compile(len)
    assert len(caplog.records) == 1 and "torch_xla.compile" in caplog.records[0].message
    tensor = torch.arange(4.0).to("xla")
    with experimental.eager_mode_context(True):
        executions, compiled = counter("ExecuteComputation"), counter("UncachedCompile")
        results = [step(tensor) for _ in range(3)]
        assert counter("ExecuteComputation") == executions + 3
        assert counter("UncachedCompile") == compiled + 1
        assert experimental.is_eager_mode()
    assert [result.item() for result in results] == [16.0] * 3
