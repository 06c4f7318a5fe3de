"""The time of steps: nested events, divided by samples, without the warm-up; and of one thread of several."""

from __future__ import annotations

import threading
from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from xla_debug.core import events as events_abi
from xla_debug.recording.collector import Collector
from xla_debug.recording.sampler import Sample
from xla_debug.recording.steps import TIMELINE, MeasuredStep, Moved, Restart, Steps, TimedEvent, self_times
from xla_debug.run_report.schema import Phase

START = 1_000.0
MS = 1_000_000


def sync(start_ms: float, ms: float, waited_ms: float = 0) -> events_abi.SyncEvent:
    return events_abi.SyncEvent(
        device="xla:0",
        start_s=START + start_ms / 1e3,
        duration_ns=int(ms * MS),
        kind=events_abi.SyncKind.STEP,
        waited_ns=int(waited_ms * MS),
    )


def event_of(phase: Phase, start_ms: float, ms: float) -> TimedEvent:
    return TimedEvent(phase, START + start_ms / 1e3, int(ms * MS))


def sample(at_ms: float, phase: Phase, line: str = "train.py:1") -> Sample:
    return Sample(START + at_ms / 1e3, phase, line)


def taken(steps: Steps, *samples: Sample) -> dict[str, float]:
    steps.accumulate(deque(samples))
    return {phase: round(ms, 3) for phase, ms in steps.measured().phases_ms().items()}


@st.composite
def nested(draw: st.DrawFn, start: int = 0, end: int = 64, depth: int = 4) -> list[tuple[Phase, int, int]]:
    """Events in [start, end), in the order of their ends: any two are one in the other, or apart."""
    found: list[tuple[Phase, int, int]] = []
    while depth and end - start > 1 and draw(st.booleans()):
        begin = draw(st.integers(start, end - 1))
        stop = draw(st.integers(begin + 1, end))
        found += [*draw(nested(begin + 1, stop, depth - 1)), (draw(st.sampled_from(Phase)), begin, stop)]
        start = stop + 1
    return found


@given(nested())
def test_each_moment_counts_for_the_innermost_event(events: list[tuple[Phase, int, int]]) -> None:
    expected: dict[Phase, int] = {}
    for moment in range(64):
        around = [(begin, phase) for phase, begin, stop in events if begin <= moment < stop]
        if around:
            phase = max(around, key=lambda event: event[0])[1]
            expected[phase] = expected.get(phase, 0) + MS
    ns, total = self_times([event_of(phase, begin, stop - begin) for phase, begin, stop in events])
    assert {phase: value for phase, value in ns.items() if value} == expected
    assert total == sum(expected.values())


def test_what_no_event_tells_is_split_as_it_was_seen() -> None:
    steps = Steps(START)
    steps.notes.extend([event_of(Phase.TRANSFER, 10, 20), sync(80, 20, waited_ms=15)])
    seen = [sample(at, Phase.LOADER) for at in (5, 40, 50)] + [sample(60, Phase.TRACING), sample(101, Phase.PYTHON)]
    assert taken(steps, *seen) == {"transfer": 20, "look-up": 5, "waiting": 15, "loader": 45, "tracing": 15}


def test_few_samples_are_split_as_those_of_the_run() -> None:
    steps = Steps(START)
    steps.notes.extend([*(sync(10 * number, 0) for number in (1, 2, 3)), sync(130, 0), sync(230, 0)])
    early = [sample(at, Phase.LOADER) for at in range(10)]
    assert taken(steps, *early, *[sample(at, Phase.PYTHON) for at in (40, 50, 60)], sample(180, Phase.TRACING)) == {
        "loader": 10,
        "python": 20 * 3 / 4 + 100 + 100 * 3 / 4,
        "tracing": 20 / 4 + 100 / 4,
    }


def test_a_short_run_is_split_by_the_few_there_are() -> None:
    steps = Steps(START)
    steps.notes.extend([sync(100, 0), sync(200, 0)])
    assert taken(steps, sample(50, Phase.PYTHON)) == {"python": 100, "tracing": 100}


def test_a_restart_leaves_out_what_was_before() -> None:
    steps = Steps(START)
    steps.notes.extend([sync(100, 0), Restart(START + 0.15), sync(200, 0)])
    assert taken(steps) == {"tracing": 150}


def test_the_device_is_busy_once_at_a_time() -> None:
    steps = Steps(START)
    run = dict(device="xla:0", graph_hash="", num_nodes=1, num_inputs=1, num_outputs=1)
    for start_ms, ms in ((0, 50), (20, 60), (30, 10), (90, 5)):
        steps.notes.append(events_abi.ExecuteEvent(start_s=START + start_ms / 1e3, duration_ns=ms * MS, **run))  # type: ignore[arg-type]
    steps.notes.append(sync(100, 0))
    steps.accumulate(deque())
    assert steps.measured().device_ns == pytest.approx(85 * MS, rel=1e-6)


def test_each_step_is_kept_for_who_asks() -> None:
    steps = Steps(START, keep_each=True)
    compiled, read, fallback = event_of(Phase.COMPILE, 10, 30), event_of(Phase.LOOKUP, 50, 10), event_of(Phase.FALLBACK, 70, 5)
    steps.notes.extend([compiled, Moved(12, 0), read, Moved(0, 4), fallback, Moved(0, 6), sync(90, 10), Moved(3, 0), sync(150, 0)])
    steps.accumulate(deque())
    assert steps.each is not None
    first, second = steps.each
    ns = {Phase.COMPILE: 30 * MS, Phase.LOOKUP: 20 * MS, Phase.FALLBACK: 5 * MS}
    assert {phase: first.ns[phase] for phase in ns} == ns
    assert (first.index, first.start_s, first.end_s) == (0, START, pytest.approx(START + 0.1))
    assert (first.compiles, first.reads, first.fallbacks, first.to_device, first.from_device) == (1, 1, 1, 12, 10)
    assert second == MeasuredStep(1, first.end_s, START + 0.15, second.ns, 0, 0, 0, 0, 3, 0)
    assert Steps(START).each is None


@pytest.mark.parametrize(("count", "every"), [(1, 1), (TIMELINE, 1), (TIMELINE + 1, 2), (5 * TIMELINE, 8)])
def test_a_timeline_is_evenly_thinned(count: int, every: int) -> None:
    steps = Steps(START)
    for number in range(count):
        steps.notes.append(sync(number + 1, 0))
        if number % 700 == 0:
            steps.accumulate(deque())
    steps.accumulate(deque())
    places = [round((step.start_s - START) * 1e3) for step in steps.timeline()]
    assert places == list(range(0, count, every))


def test_the_warm_up_does_not_count_in_a_longer_run() -> None:
    steps = Steps(START)
    for number in range(3):
        steps.notes.append(sync(1_000 * (number + 1), 0))
    for number in range(7):
        steps.notes.append(sync(3_001 + number, 0))
    assert taken(steps) == {"tracing": 7} and steps.measured().steps == 7 and steps.count == 10


def test_steps_of_one_thread_are_recorded_and_of_the_next_when_it_has_ended() -> None:
    collector = Collector()
    collector.start()
    device = torch_xla.device()
    go, done = threading.Event(), threading.Event()

    def step(count: int) -> None:
        for _ in range(count):
            torch.ones(2, device=device).add_(1)
            torch_xla.sync()

    def first() -> None:
        step(3)
        done.set()
        go.wait()

    def other() -> None:
        step(2)

    try:
        one = threading.Thread(target=first)
        one.start()
        assert done.wait(60)
        two = threading.Thread(target=other)
        two.start()
        two.join()
        assert collector.replica(False).steps == 3, "the first still runs"
        go.set()
        one.join()
        three = threading.Thread(target=other)
        three.start()
        three.join()
    finally:
        go.set()
        collector.stop()
    found = collector.replica(True)
    assert found.steps == 5 and sum(row.count for row in found.syncs if row.kind == "step") == 7


def test_samples_count_for_the_time_they_stand_for() -> None:
    steps = Steps(START)
    steps.notes.append(sync(99, 1))
    tracing, python = (sample(10.0 + place, phase) for place, phase in enumerate((Phase.TRACING, Phase.PYTHON)))
    found = taken(steps, tracing._replace(weight=2), python._replace(weight=1), python._replace(time_s=START + 0.05))
    assert (found["tracing"], found["python"]) == (49.5, 49.5)
