"""Traces: their format, what they say of a run, and torch's ranges beside them by one clock."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
import torch_xla.debug.metrics as met
import torch_xla.debug.profiler as xp
from xla_core.abi.events import ExecuteEvent, subscribe
from xla_debug.cli import group
from xla_debug.profiling.chrome_trace import TraceEvents
from xla_debug.run_report import files
from xla_debug.run_report.schema import Replica, RunReport, Span

START = 1_750_000_000.0  # of the replicas that `full` makes


def checked(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a trace, if they are as the Trace Event Format has them, and properly nested in each row."""
    events: list[dict[str, Any]] = trace["traceEvents"]
    rows: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert event["ph"] in "XMCsfi" and isinstance(event["name"], str)
        if isinstance(event["pid"], str):  # of torch's own
            continue
        if event["ph"] == "M":
            assert event["args"].keys() <= {"name", "sort_index", "labels"}
        else:
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        ends: list[float] = []
        for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while ends and ends[-1] <= start + 1e-6:
                ends.pop()
            assert not ends or end <= ends[-1] + 2e-3, "a span that is partly in another"
            ends.append(end)
    starts = {event["id"]: event for event in events if event["ph"] == "s" and event["name"] == "launch"}
    finishes = {event["id"]: event for event in events if event["ph"] == "f" and event["name"] == "launch"}
    assert starts.keys() == finishes.keys() and all(finishes[number]["bp"] == "e" for number in finishes)
    return events


def named_rows(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}


def train(steps: int) -> None:
    """Ends when each program is reported, which a thread does that waits for the device: under load behind the last read."""
    reported = threading.Semaphore(0)
    end = subscribe(lambda _: reported.release(), ExecuteEvent)  # after the timeline, so that it has noted what is counted here
    before = met.counter_value("ExecuteComputation") or 0
    model = torch.nn.Linear(40, 40).to("xla")
    for _ in range(steps):
        with torch.profiler.record_function("my step"):
            loss = model(torch.randn(20, 40).to("xla")).sum()
            torch_xla.sync()  # the sync
            loss.item()  # the read
    for _ in range(met.counter_value("ExecuteComputation") - before):
        assert reported.acquire(timeout=60)
    end()


def test_a_timeline_has_host_copies_and_device_with_lines(tmp_path: Path) -> None:
    with xp.Timeline() as timeline:
        train(3)
    timeline.export(tmp_path / "trace.json")
    events = checked(json.loads((tmp_path / "trace.json").read_text()))
    rows = named_rows(events)
    assert {"xla host", "xla copies", "xla xla:0"} <= set(rows.values())

    def of(row: str, category: str) -> list[dict[str, Any]]:
        return [event for event in events if event["ph"] == "X" and event["cat"] == category and rows[event["pid"], event["tid"]] == row]

    here = Path(__file__).read_text().splitlines()
    for row, category, marker in (
        ("xla host", "compile", "the sync"),
        ("xla xla:0", "device", "the sync"),
        ("xla copies", "transfer", "the read"),
    ):
        line = f"{__file__}:{next(number for number, text in enumerate(here, 1) if text.endswith(f'# {marker}'))}"
        assert line in {event["args"].get("line") for event in of(row, category)}, (row, category)
    assert len([event for event in of("xla host", "look-up") if event["name"] == "sync of a step"]) == 3
    assert of("xla host", "tracing") and all(event["args"]["estimated"] for event in of("xla host", "tracing"))
    assert len([event for event in events if event["ph"] == "s"]) == len(of("xla xla:0", "device")) >= 3


def test_torch_s_ranges_are_in_the_same_trace_by_the_same_clock(tmp_path: Path) -> None:
    train(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile, xp.Timeline() as timeline:
        train(2)
    timeline.export(tmp_path / "trace.json", profile)
    events = checked(json.loads((tmp_path / "trace.json").read_text()))
    ranges = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"] == "my step"
    ]
    syncs = [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == "sync of a step"]
    assert len(ranges) == len(syncs) == 2
    for (start, end), (begin, done) in zip(sorted(ranges), sorted(syncs), strict=True):
        assert start - 100 <= begin and done <= end + 100, "microseconds: one clock is read by time.time, the other by torch"


def test_a_timeline_is_of_one_block() -> None:
    timeline = xp.Timeline()
    with timeline:
        pass
    with pytest.raises(RuntimeError, match="make a new one"), timeline:
        pass


def test_the_command_writes_the_trace_of_all_replicas(
    full: Callable[..., Replica], run_report: Callable[..., RunReport], tmp_path: Path
) -> None:
    spans = [
        Span("host", "look-up", "sync of a step", START + 1.0, 4.0, "/work/app/train.py:30"),
        Span("host", "waiting", "waiting for the device", START + 1.003, 1.0005, "/work/app/train.py:30"),  # ends behind the sync
        Span("xla:0", "device", "step, 12 operations", START + 1.002, 2.0, "/work/app/train.py:30", launched_s=START + 1.001),
    ]
    report = run_report(full(0, spans=spans), full(1, spans=spans))
    files.write(report, tmp_path / "run.json")
    done = CliRunner().invoke(group, ["trace", str(tmp_path / "run.json"), "-o", str(tmp_path / "trace.json")])
    assert done.exit_code == 0, done.output
    events = checked(json.loads((tmp_path / "trace.json").read_text()))
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [re.sub(" on .*", "", name) for name in processes] == ["replica 0", "replica 1"]
    compiled = [event for event in events if event.get("cat") == "compile" and event["pid"] == 1]
    assert [(event["ts"], event["dur"]) for event in compiled] == [
        pytest.approx((0.0, 900_000.0), abs=0.5),  # of seconds as floats
        pytest.approx((400_000.0, 450_000.0), abs=0.5),
    ], "before the last steps"
    (ran,) = [event for event in events if event.get("cat") == "device" and event["pid"] == 1]
    assert (ran["ts"], ran["dur"]) == pytest.approx((1_002_000.0, 2_000.0), abs=0.5)
    assert ran["args"] == {"line": "/work/app/train.py:30"}
    (of,) = [event for event in events if event["ph"] == "s" and event["pid"] == 1]
    assert of["ts"] == pytest.approx(1_001_000.0, abs=0.5) and of["tid"] != ran["tid"]
    assert {event["args"]["bytes in use"] for event in events if event["ph"] == "C"} == {0, 64 << 20, 50 << 20}


@given(st.lists(st.tuples(st.integers(0, 10**7), st.booleans()), min_size=1, max_size=8), st.floats(1.7e9, 1.9e9))
def test_spans_one_behind_the_other_keep_their_time(lengths_ns: list[tuple[int, bool]], start_s: float) -> None:
    """Each begins where the one before it ends, or contains it: of seconds as floats, which say neither exactly."""
    spans, last_s = [], start_s
    for index, (ns, around) in enumerate(lengths_ns):
        first_s = start_s if around else last_s
        last_s += ns * 1e-9
        spans.append((first_s, (last_s - first_s) * 1e3, str(index), "device", {}))
    trace = TraceEvents(round(start_s * 1e9))
    trace.row(1, 1, spans)
    checked({"traceEvents": trace.events})
    for event in trace.events:
        first_s, ms, *_ = spans[int(event["name"])]
        assert event["ts"] == pytest.approx((first_s - start_s) * 1e6, abs=2) and event["dur"] == pytest.approx(ms * 1e3, abs=2)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_spans_of_any_overlap_are_nested(spans_tenths_of_us: list[tuple[int, int]]) -> None:
    trace = TraceEvents(0)
    trace.row(1, 1, [(start * 1e-7, length * 1e-4, "span", "device", {}) for start, length in spans_tenths_of_us])
    checked({"traceEvents": trace.events})


def test_kernels_of_a_profile_stand_beside_the_run(
    full: Callable[..., Replica], run_report: Callable[..., RunReport], tmp_path: Path
) -> None:
    xp.start_trace(tmp_path / "profile")
    with xp.Timeline() as timeline:
        train(2)
    xp.stop_trace()
    spans = timeline._timeline.spans(timeline._thread)
    files.write(run_report(full(0, spans=spans, compiles=[])), tmp_path / "run.json")
    ask = ["trace", str(tmp_path / "run.json"), "-o", "-", "--profile", str(tmp_path / "profile")]
    events = checked(json.loads(CliRunner().invoke(group, ask).output))
    kernels = [event for event in events if event.get("cat") == "operator" and event["name"] == "aten.linear"]
    programs = [event for event in events if event.get("cat") == "device"]
    assert kernels and all(event["args"]["line"].startswith("test_chrome_trace.py:") for event in kernels)
    for kernel in kernels:
        within = (program["ts"] - 500 <= kernel["ts"] <= program["ts"] + program["dur"] + 500 for program in programs)
        assert any(within), "by the same clock"


def test_without_spans_it_says_what_to_do(full: Callable[..., Replica], run_report: Callable[..., RunReport], tmp_path: Path) -> None:
    files.write(run_report(full(0)), tmp_path / "run.json")
    refused = CliRunner().invoke(group, ["trace", str(tmp_path / "run.json"), "-o", "-"])
    assert refused.exit_code == 2 and "record the run again" in refused.output
