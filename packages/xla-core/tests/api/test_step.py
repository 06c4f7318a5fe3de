"""Steps and compiled regions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental as experimental
from xla_core.base import metrics
from xla_core.base.errors import GraphBreakError, TooManyGraphsError
from xla_core.engine.runtime.executor import wait_all
from xla_core.engine.runtime.source_location import region_name

Run = Callable[..., str]


class Counts:
    """How often things happened since this was made."""

    def __init__(self) -> None:
        wait_all()
        self._before = dict(metrics.snapshot().counters)

    def __getattr__(self, name: str) -> int:
        return metrics.counter(name) - self._before.get(name, 0)


@pytest.fixture
def counts() -> Iterator[Counts]:
    """Counted from a step's start."""
    torch_xla.sync()
    yield Counts()
    torch_xla.sync()


def data(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers).to("xla")


def test_a_sync_runs_what_is_live_once(counts: Counts) -> None:
    tensor = data(1.0, 2.0) * 3
    torch_xla.sync(wait=True)
    xm.mark_step(wait=False, reset_scope=False)
    assert (counts.MarkStep, counts.ExecuteComputation) == (2, 1)
    assert tensor.tolist() == [3.0, 6.0]
    assert counts.ExecuteComputation == 1


def test_an_empty_sync_runs_nothing(counts: Counts) -> None:
    for _ in range(3):
        xm.mark_step()
    assert (counts.MarkStep, counts.ExecuteComputation, counts.UncachedCompile) == (3, 0, 0)


def test_step_log(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    torch_xla.sync()
    monkeypatch.setenv("XLA_EMIT_STEPLOG", "1")
    torch_xla.sync()
    xm.mark_step()
    lines = [line for line in capfd.readouterr().err.splitlines() if "::" in line]
    assert lines == ["torch_xla.torch_xla::sync", "torch_xla.core.xla_model::mark_step"]


def test_sync_wait_replaces_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr("xla_core.engine.runtime.executor.wait", waited.append)
    torch_xla.sync()
    assert not waited
    monkeypatch.setenv("XLA_SYNC_WAIT", "1")
    torch_xla.sync()
    assert len(waited) == 1
    monkeypatch.setenv("XLA_SYNC_WAIT", "0")
    torch_xla.sync(wait=True)
    assert len(waited) == 1


def test_step_syncs_on_both_ends(counts: Counts) -> None:
    with torch_xla.step():
        tensor = data(1.0) + 1
        assert (counts.MarkStep, counts.ExecuteComputation) == (1, 0)
    assert (counts.MarkStep, counts.ExecuteComputation) == (2, 1)
    with pytest.raises(KeyError), torch_xla.step():
        tensor += 1
        raise KeyError
    assert counts.MarkStep == 4 and tensor.tolist() == [3.0]


def test_closures_see_the_step_and_add_no_execution(counts: Counts) -> None:
    seen: list[object] = []
    weights = data(1.0, 2.0, 3.0)
    for step in range(3):
        loss = (weights * 2).sum() + step
        xm.add_step_closure(
            lambda number, tensor, view: seen.append((number, tensor.item(), view["x"][0].tolist())), (step, loss, {"x": [weights[1:]]})
        )
        xm.add_step_closure(seen.append, args=("second",))
        weights += 1
        xm.mark_step()
    assert seen == [
        (0, 12.0, [3.0, 4.0]),
        "second",
        (1, 19.0, [4.0, 5.0]),
        "second",
        (2, 26.0, [5.0, 6.0]),
        "second",
    ]
    assert (counts.ExecuteComputation, counts.UncachedCompile + counts.CachedCompile) == (3, 3)


def test_a_failing_closure_loses_the_rest_of_its_step() -> None:
    seen: list[str] = []

    def fail() -> None:
        raise KeyError("closure")

    xm.add_step_closure(seen.append, ("first",))
    xm.add_step_closure(fail)
    xm.add_step_closure(seen.append, ("lost",))
    with pytest.raises(KeyError, match="closure"):
        torch_xla.sync()
    torch_xla.sync()
    assert seen == ["first"]


def test_async_closures_run_in_order_and_fail_at_the_next_hand_over() -> None:
    seen: list[object] = []
    tensor = data(2.0)
    for number in range(5):
        xm.add_step_closure(lambda number, tensor: seen.append((number, tensor.item())), (number, tensor * number), run_async=True)
    torch_xla.sync()
    context = xm._get_device_context()
    thread = context.async_closure_handler._thread
    if thread is not None:
        thread.join()
    assert seen == [(number, 2.0 * number) for number in range(5)]

    def fail() -> None:
        raise KeyError("background")

    xm.add_step_closure(fail, run_async=True)
    torch_xla.sync()
    thread = context.async_closure_handler._thread
    if thread is not None:
        thread.join()
    xm.add_step_closure(seen.clear, run_async=True)
    with pytest.raises(RuntimeError) as caught:
        torch_xla.sync()
    assert isinstance(caught.value.__cause__, KeyError)
    assert xm._run_step_closures() is context


def test_one_context_for_each_device() -> None:
    context = xm._get_device_context()
    assert context is xm._get_device_context("xla:0") is xm._get_device_context(torch.device("xla:0"))
    assert str(context.device) == "xla:0"
    context.anything = 3
    assert xm._get_device_context().anything == 3
    assert isinstance(context, xm.DeviceContext) and xm.DeviceContext("xla:0") is not context


@torch_xla.compile
def doubled(tensor: torch.Tensor) -> torch.Tensor:
    """Twice."""
    return tensor * 2


def test_compile_as_decorator(counts: Counts) -> None:
    tensor = data(1.0, 2.0)
    results = [doubled(tensor) for _ in range(4)]
    assert doubled.__name__ == "doubled" and doubled.__doc__ == "Twice."
    assert (counts.MarkStep, counts.ExecuteComputation) == (8, 4)
    assert counts.UncachedCompile <= 1
    assert [result.tolist() for result in results] == [[2.0, 4.0]] * 4


def test_compile_as_wrapper_and_context_manager(counts: Counts) -> None:
    tensor = data(1.0)
    step = torch_xla.compile(lambda x, *, add: x + add, name="added")
    assert step(tensor, add=2.0).tolist() == [3.0]
    with torch_xla.compile(name="outer"):
        assert region_name() == "outer"
        pending = tensor + 1
        assert counts.ExecuteComputation == 1
    assert region_name() is None
    assert counts.ExecuteComputation == 2 and pending.tolist() == [2.0]

    @torch_xla.compile(full_graph=True)
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 3

    assert inner(tensor).tolist() == [4.0]


def test_compile_full_graph_forbids_reads() -> None:
    tensor = data(1.0)
    for read in (lambda x: x.item(), lambda x: x.cpu(), str, torch.nonzero):
        with pytest.raises(GraphBreakError, match="full_graph"):
            torch_xla.compile(lambda x, read=read: read(x + 1), full_graph=True)(tensor)
    assert torch_xla.compile(lambda x: (x + 1).item())(tensor) == 2.0
    assert (tensor + 1).item() == 2.0


def test_compile_limits_distinct_graphs() -> None:
    step = torch_xla.compile(lambda x: x * 2, max_different_graphs=1)
    for _ in range(3):
        assert step(data(1.0)).tolist() == [2.0]
    with pytest.raises(TooManyGraphsError, match="max_different_graphs=1"):
        step(data(1.0, 2.0))
    assert step(data(3.0)).tolist() == [6.0]
    with pytest.raises(ValueError, match="max_different_graphs"):
        torch_xla.compile(max_different_graphs=0)


def test_compile_syncs_and_restores_when_the_body_raises(counts: Counts) -> None:
    experimental.eager_mode(True)
    try:
        with pytest.raises(KeyError), torch_xla.compile(full_graph=True):
            assert not experimental.is_eager_mode()
            raise KeyError
        assert experimental.is_eager_mode()
        assert counts.MarkStep == 2
    finally:
        experimental.eager_mode(False)
    assert (data(1.0) + 1).item() == 2.0


def test_manual_seed() -> None:
    torch_xla.manual_seed(7)
    assert xm.get_rng_state() == 7
    torch_xla.manual_seed(8, device="xla:0")
    assert xm.get_rng_state("xla:0") == 8
    with pytest.raises(ValueError):
        torch_xla.manual_seed(-1)


def test_entering_a_region_is_a_step_only_if_something_runs() -> None:
    steps: list[metrics.SyncEvent] = []
    torch_xla.sync()
    end = metrics.subscribe(lambda event: steps.append(event) if event.kind is metrics.SyncKind.STEP else None, metrics.SyncEvent)
    try:
        x = data(1.0)
        for _ in range(3):
            with torch_xla.step():
                x = x + 1
        assert len(steps) == 3
        x = x + 1
        with torch_xla.step():  # here there was something to run
            x = x + 1
        assert len(steps) == 5
        double = torch_xla.compile(lambda x: x * 2)
        for _ in range(2):
            x = double(x)
        assert len(steps) == 7 and x.item() == 24
        torch_xla.sync()
        assert len(steps) == 8  # asked for by name, it is one
    finally:
        end()
