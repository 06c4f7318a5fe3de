"""What events say beside the time: the user's line, the program, what was waited for; and who asked."""

from __future__ import annotations

import contextvars
import inspect
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
from xla_core.abi import events as events_abi
from xla_core.abi.collectives import ReplicaWaitEvent, note_replica_wait
from xla_core.abi.graph import Graph, capture_lines, graph_of
from xla_core.abi.metrics import Unit, counter, live_buffers, metric, metric_add, snapshot
from xla_core.abi.settings import installed_settings
from xla_core.abi.tensors import buffer_of
from xla_core.engine.graph.graph import own

_arrived = threading.Condition()


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """All events, as they come."""
    torch_xla.sync(wait=True)
    found: list[Any] = []

    def add(event: Any) -> None:
        with _arrived:
            found.append(event)
            _arrived.notify_all()

    end = events_abi.subscribe(add)
    yield found
    end()


def executions(events: list[Any], count: int) -> list[events_abi.ExecuteEvent]:
    """The first `count`: a thread tells of each when it is over, perhaps after its results were read."""
    with _arrived:
        assert _arrived.wait_for(lambda: len(of(events, events_abi.ExecuteEvent)) >= count, 60)
        return of(events, events_abi.ExecuteEvent)


def here(offset: int = 0) -> str:
    """The caller's own line, or one after it."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + offset}"


def of(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if type(event) is kind]


def test_every_event_names_the_line_that_asked(events: list[Any]) -> None:
    x = torch.ones(3, 61).to("xla")
    uploaded = here(-1)
    kept = x.cosh()
    torch_xla.sync(wait=True)
    synced = here(-1)
    kept.sum().item()
    read = here(-1)
    assert [(event.direction, event.line) for event in of(events, events_abi.TransferEvent)] == [
        (events_abi.Direction.TO_DEVICE, uploaded),
        (events_abi.Direction.FROM_DEVICE, read),
    ]
    assert [(event.kind, event.line) for event in of(events, events_abi.SyncEvent)] == [
        (events_abi.SyncKind.STEP, synced),
        (events_abi.SyncKind.READ, read),
    ]
    assert [event.line for event in of(events, events_abi.CompileEvent)] == [synced, read]
    assert sorted(event.line or "" for event in executions(events, 2)) == sorted([synced, read])


def test_a_compilation_carries_its_program(events: list[Any]) -> None:
    x = torch.ones(3, 62).to("xla")
    kept = x.sinh() * 0.25 + 7
    torch_xla.sync()
    (event,) = of(events, events_abi.CompileEvent)
    graph: Graph = event.graph
    names = [operation.name for operation in graph.operations()]
    assert names == ["aten.sinh", "aten.mul.Tensor", "aten.add.Tensor"]
    assert [found.text for found in graph.inputs()] == ["f32[3,62]"]
    assert sorted(event.constants) == [0.25, 7.0] and len(graph.numbers()) == 2
    (result,) = graph.results()
    assert result is not None and result.name == "aten.add.Tensor" and result.line == here(-9)
    first = next(iter(graph.operations()))
    assert first.operands == (next(iter(graph.inputs())).slot,) and event.donated == (), "x is still there"
    del kept


def test_a_compilation_says_whose_memory_is_taken_over(events: list[Any]) -> None:
    x = torch.ones(64, 64).to("xla")
    y = torch.ones(64, 64).to("xla")
    x.add_(y)
    torch_xla.sync()
    (event,) = of(events, events_abi.CompileEvent)
    taken = next(iter(event.graph.operations())).operands[0]
    assert event.donated == (taken,), "the old value of x, and not y"
    assert y.sum().item() == 4096


def test_a_result_that_is_an_input_is_computed_by_nothing() -> None:
    x = torch.ones(3).to("xla")
    torch_xla.sync()
    graph = own(graph_of([x.cos()]))
    assert [operation and operation.name for operation in graph.results()] == ["aten.cos"]
    through = type(graph)(graph.entries, (0,))
    assert list(through.results()) == [None]


def test_waiting_is_told_apart(events: list[Any]) -> None:
    x = torch.rand(700, 700).to("xla")
    for _ in range(3):
        x = x @ x / 700
    torch_xla.sync(wait=True)
    (step,) = of(events, events_abi.SyncEvent)
    (executed,) = executions(events, 1)
    assert 0 < step.waited_ns <= step.duration_ns
    assert 0 <= executed.blocked_ns <= executed.duration_ns
    y = x @ x
    torch_xla.sync()
    y.tolist()
    moved = of(events, events_abi.TransferEvent)[-1]
    assert 0 < moved.waited_ns < moved.duration_ns and moved.buffer is buffer_of(y)


def test_a_fallback_says_what_it_moved(events: list[Any]) -> None:
    matrix = torch.eye(4).to("xla")
    with warnings.catch_warnings(action="ignore"):  # it warns of each operator once in a process
        torch.linalg.ldl_factor(matrix)
    line = here(-1)
    (event,) = of(events, events_abi.FallbackEvent)
    assert (event.operator, event.line) == ("aten::linalg_ldl_factor_ex", line)
    assert event.nbytes == 4 * 4 * 4 + (4 * 4 * 4 + 4 * 4 + 4), "the matrix there; factors, pivots and info back"


def test_regions_have_a_name_and_two_causes(events: list[Any]) -> None:
    x = torch.ones(63).to("xla")

    @torch_xla.compile(name="my step")
    def step() -> torch.Tensor:
        return x.acosh()

    pending = x.asinh()
    step()
    found = [(event.cause, event.name) for event in of(events, events_abi.CompileEvent)]
    assert found == [(events_abi.Cause.CLEAR_PENDING, None), (events_abi.Cause.COMPILE_REGION, "my step")]
    del pending


def test_the_users_frames() -> None:
    def inner() -> tuple[str, ...]:
        return events_abi.user_frames()

    found = inner()
    assert found[0].startswith(f"test_the_users_frames.<locals>.inner ({__file__}:") and found[1].startswith("test_the_users_frames (")
    assert not any("/torch/" in frame or "/xla_core/" in frame.replace("/tests/", "") for frame in found[:2])


def test_one_metric_is_read_without_a_snapshot() -> None:
    metric_add("TestOfOneMetric", 2.0, Unit.NUMBER)
    metric_add("TestOfOneMetric", 3.0, Unit.NUMBER)
    found = metric("TestOfOneMetric")
    assert found is not None and found == snapshot().metrics["TestOfOneMetric"]
    assert (found.total_samples, found.accumulator) == (2, 5.0) and [value for _, value in found.samples] == [2.0, 3.0]
    assert "TestOfOneMetric" in snapshot().metrics and metric("NoSuchMetric") is None


def test_live_buffers_and_the_tensors_that_show_them() -> None:
    x = torch.ones(517, 3).to("xla")
    view, same = x[1:], x.detach()
    torch_xla.sync()
    (found,) = [buffer for buffer in live_buffers() if buffer.array.shape == (517, 3)]
    assert found.device == "xla:0" and found.array is buffer_of(x)
    assert {id(tensor) for tensor in found.tensors} == {id(x), id(view), id(same)}
    sizes = [buffer.array.nbytes for buffer in live_buffers()]
    assert sizes == sorted(sizes, reverse=True)
    del found, view, same, x
    assert not [buffer for buffer in live_buffers() if buffer.array.shape == (517, 3)]


def test_lines_of_operations_can_be_switched_on_for_a_while() -> None:
    def twice(flag: bool) -> tuple[list[str | None], list[str]]:
        capture_lines(flag)
        x = torch.ones(64).to("xla")
        first = x.tan()
        second = first.tan()
        graph = graph_of([second])
        return [operation.line for operation in graph.operations()], [here(-3), here(-2)]

    before = counter("xla::tan")
    try:
        off, _ = twice(False)
        on, expected = twice(True)
    finally:
        capture_lines(False)
    assert off[0] == off[1], "one signature, where it was first seen"
    assert on == expected
    assert counter("xla::tan") - before == 4, "counting goes on"


def test_executions_are_told_of_with_the_context_of_who_launched_them() -> None:
    asked = contextvars.ContextVar[int | None]("asked", default=None)
    heard: list[tuple[int, int | None]] = []

    def listen(event: events_abi.ExecuteEvent) -> None:
        with _arrived:
            heard.append((threading.get_ident(), asked.get()))
            _arrived.notify_all()

    torch_xla.sync(wait=True)
    weight = torch.eye(400).to("xla")
    end = events_abi.subscribe(listen, events_abi.ExecuteEvent)
    for number in range(8):
        asked.set(number)
        weight = torch.linalg.multi_dot([weight] * 8)
        torch_xla.sync()
    asked.set(None)
    with _arrived:
        assert _arrived.wait_for(lambda: len(heard) == 8, 60)
    end()
    assert sorted(number for _, number in heard if number is not None) == list(range(8))
    assert {thread for thread, _ in heard} - {threading.get_ident()}, "none was waited for by another thread: make the programs longer"


def test_a_wait_for_replicas_has_its_beginning_and_its_line(events: list[Any]) -> None:
    before_s, begin_ns = time.time(), time.perf_counter_ns()
    note_replica_wait(torch.device("xla", 0), begin_ns)
    line = here(-1)
    (event,) = of(events, ReplicaWaitEvent)
    assert (event.device, event.line) == ("xla:0", line)
    assert 0 < event.duration_ns < time.perf_counter_ns() - begin_ns
    assert before_s - 0.001 < event.start_s <= time.time() - event.duration_ns * 1e-9


def test_lines_are_switched_while_other_threads_record() -> None:
    failed: list[BaseException] = []
    end = threading.Event()

    def record(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        x = torch.ones(65)
        try:
            while not end.is_set():
                function(x.to("xla")).sum().item()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=record, args=(function,)) for function in (torch.cos, torch.sin)]
    for thread in threads:
        thread.start()
    for place in range(40):
        capture_lines(place % 2 == 0)
    end.set()
    for thread in threads:
        thread.join()
    capture_lines(False)
    assert failed == []


def test_settings_of_what_is_installed() -> None:
    found = installed_settings()
    assert "XLA_HLO_DEBUG" in {setting.name for setting in found["xla-core"]}
    names = [setting.name for rows in found.values() for setting in rows]
    assert all(setting.doc and setting.allowed for rows in found.values() for setting in rows) and len(names) > 30
