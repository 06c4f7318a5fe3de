"""Spans of OpenTelemetry: what they say, whose children they are, when they begin and end."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import torch_xla
from xla_core.abi.collectives import ReplicaWaitEvent, note_replica_wait
from xla_debug import telemetry
from xla_debug.core import events

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Exporter(InMemorySpanExporter):
    """Keeps spans; `named` waits for them, since a thread tells of an execution when it is over."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = threading.Condition()

    def export(self, spans: Any) -> Any:
        with self._arrived:
            result = super().export(spans)
            self._arrived.notify_all()
        return result

    def named(self, name: str, count: int | None = None) -> list[ReadableSpan]:
        """The spans of a name by their start, all or the first `count`."""

        def found() -> list[ReadableSpan]:
            return sorted((span for span in self.get_finished_spans() if span.name == name), key=lambda span: span.start_time or 0)

        with self._arrived:
            assert self._arrived.wait_for(lambda: count is None or len(found()) >= count, 60)
            return found()[:count]


@pytest.fixture
def exporter() -> Exporter:
    return Exporter()


@pytest.fixture
def provider(exporter: Exporter) -> Iterator[TracerProvider]:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    torch_xla.sync(wait=True)
    yield made
    made.shutdown()


def here(offset: int = 0) -> int:
    """The caller's own line, or one after it."""
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno + offset


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def powers(base: torch.Tensor) -> torch.Tensor:
    """A program that the device takes a while for."""
    return torch.linalg.multi_dot([base] * 8)


@pytest.mark.filterwarnings("ignore:aten..linalg_ldl_factor_ex has no XLA lowering:RuntimeWarning")
def test_each_kind_of_event_is_a_span_with_its_line_its_times_and_its_numbers(exporter: Exporter, provider: TracerProvider) -> None:
    heard: list[Any] = []
    with telemetry.opentelemetry_spans(provider):
        end = events.subscribe(heard.append)
        x = torch.ones(7, 43).to("xla")
        uploaded = here(-1)
        kept = torch.atanh(x / 2) * 3
        torch_xla.sync(wait=True)
        synced = here(-1)
        assert kept.sum().item() > 0
        read = here(-1)
        torch.linalg.ldl_factor_ex(torch.eye(3, device="xla"))
        fell_back = here(-1)
        note_replica_wait(torch.device("xla", 0), time.perf_counter_ns())
        exporter.named("xla.execute", 2)
        end()
    expected = {
        events.CompileEvent: "xla.compile",
        events.ExecuteEvent: "xla.execute",
        events.TransferEvent: "xla.transfer",
        events.SyncEvent: "xla.sync",
        events.FallbackEvent: "xla.fallback",
        ReplicaWaitEvent: "xla.replica_wait",
    }
    for kind, name in expected.items():
        of_kind = sorted((event for event in heard if type(event) is kind), key=lambda event: event.start_s)
        times = [(round(event.start_s * 1e9), event.duration_ns) for event in of_kind]
        spans = exporter.named(name)
        assert of_kind and [(span.start_time, (span.end_time or 0) - (span.start_time or 0)) for span in spans] == times
        assert {attributes(span)["code.file.path"] for span in spans} == {__file__}
        assert [f"{__file__}:{attributes(span)['code.line.number']}" for span in spans] == [event.line for event in of_kind]

    compiled, executed = attributes(exporter.named("xla.compile")[0]), attributes(exporter.named("xla.execute")[0])
    assert compiled["code.line.number"] == executed["code.line.number"] == synced
    assert compiled["xla.program.hash"] == executed["xla.program.hash"]
    assert compiled["xla.cause"] == executed["xla.cause"] == "user_sync" and compiled["xla.compile.change"] == "first"
    assert (executed["xla.device"], executed["xla.step"], executed["xla.program.inputs"]) == ("xla:0", 0, compiled["xla.program.inputs"])
    up, down = attributes(exporter.named("xla.transfer")[0]), attributes(exporter.named("xla.transfer")[1])
    assert (up["xla.direction"], up["xla.bytes"], up["code.line.number"]) == ("to_device", 7 * 43 * 4, uploaded)
    assert (down["xla.direction"], down["xla.bytes"], down["code.line.number"]) == ("from_device", 4, read)
    step, value = (attributes(span) for span in exporter.named("xla.sync")[:2])
    assert (step["xla.sync.kind"], step["xla.step"], value["xla.sync.kind"], value["xla.step"]) == ("step", 0, "read", 1)
    (fallback,) = map(attributes, exporter.named("xla.fallback"))
    assert (fallback["xla.operator"], fallback["code.line.number"]) == ("aten::linalg_ldl_factor_ex", fell_back)
    assert fallback["xla.bytes"] >= 2 * 3 * 3 * 4


def test_spans_are_children_of_the_users_current_one_whichever_thread_waits(exporter: Exporter, provider: TracerProvider) -> None:
    base = torch.eye(300).to("xla")
    tracer = provider.get_tracer("the user's")
    with telemetry.opentelemetry_spans(provider):
        ids = []
        for number in range(4):
            with tracer.start_as_current_span(f"batch {number}") as batch:
                ids.append(batch.get_span_context().span_id)
                base = powers(base)
                torch_xla.sync()
        executed = exporter.named("xla.execute", 4)
    assert [parent_of(span) for span in executed] == ids
    assert [attributes(span)["xla.step"] for span in executed] == [0, 1, 2, 3]
    assert [parent_of(span) for span in exporter.named("xla.sync")] == ids
    assert parent_of(exporter.named("xla.compile")[0]) == ids[0]
    assert exporter.named("xla.step") == [], "no step's span is needed"
    # What waits for another program has none of its time.
    lengths = [(span.start_time or 0, span.end_time or 0, attributes(span)["xla.device_ns"]) for span in executed]
    assert sum(busy for *_, busy in lengths) <= lengths[-1][1] - lengths[0][0]
    assert all(0 <= busy <= end - start for start, end, busy in lengths)


def test_without_a_current_span_each_step_is_a_trace(exporter: Exporter, provider: TracerProvider) -> None:
    base = torch.eye(300).to("xla")
    with telemetry.opentelemetry_spans(provider):
        for _ in range(3):
            base = powers(base)
            torch_xla.sync()
        exporter.named("xla.execute", 3)
        torch.ones(11).to("xla")  # in a step that does not end
    steps = exporter.named("xla.step")
    assert [attributes(span)["xla.step"] for span in steps] == [0, 1, 2, 3]
    assert len({context(span).trace_id for span in steps}) == 4 and {parent_of(span) for span in steps} == {None}
    for before, after in zip(steps[:2], steps[1:3], strict=True):
        assert before.end_time == after.start_time
    ids = [context(span).span_id for span in steps]
    assert [parent_of(span) for span in exporter.named("xla.execute")] == ids[:3]
    syncs = exporter.named("xla.sync")
    assert [parent_of(span) for span in syncs] == ids[:3] and [span.end_time for span in syncs] == [span.end_time for span in steps[:3]]
    assert parent_of(exporter.named("xla.transfer")[-1]) == ids[3]


def test_a_compilation_says_why(exporter: Exporter, provider: TracerProvider) -> None:
    with telemetry.opentelemetry_spans(provider):
        for rows in (5, 6):
            torch.cosh(torch.ones(rows, 17).to("xla")).sum().item()
    first, second = map(attributes, exporter.named("xla.compile"))
    assert (second["xla.compile.change"], second["xla.cause"]) == ("input shape", "value_read")
    assert "f32[6,17], was f32[5,17]" in second["xla.compile.reason"] and first["xla.program.hash"] != second["xla.program.hash"]


def test_after_the_block_nothing_is_heard(exporter: Exporter, provider: TracerProvider) -> None:
    with telemetry.opentelemetry_spans(provider):
        torch.ones(3).to("xla")
    count = len(exporter.get_finished_spans())
    torch.ones(3).to("xla")
    assert len(exporter.get_finished_spans()) == count


def test_the_programs_own_provider_is_needed_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", _proxy)
    with pytest.raises(RuntimeError, match="set_tracer_provider"), telemetry.opentelemetry_spans():
        pass


def test_the_programs_own_provider_is_taken(exporter: Exporter, provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    found: Callable[[], TracerProvider] = lambda: provider  # noqa: E731
    monkeypatch.setattr(trace, "get_tracer_provider", found)  # setting one cannot be undone
    with telemetry.opentelemetry_spans():
        torch.ones(3).to("xla")
    assert len(exporter.named("xla.transfer")) == 1


def _proxy() -> trace.ProxyTracerProvider:
    return trace.ProxyTracerProvider()
