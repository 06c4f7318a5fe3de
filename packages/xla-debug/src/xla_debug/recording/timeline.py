"""Give the spans of what host, devices and copies did in the last steps.

Each event leaves a few numbers in a ring, which become spans on request. Between the events of the thread that runs the steps, samples
tell what it did, also samples at the same place of earlier steps, since steps repeat and samples are few.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from xla_debug.core import collectives, events
from xla_debug.recording.listener import Listener
from xla_debug.recording.sampler import Sample
from xla_debug.run_report.schema import DEVICE, HOST, TOOL, Phase, Span

STEPS = 16
"""The number of last steps whose spans are given."""
_MOST_SPANS = 3_000
_MOST_EVENTS = 4_096
_MOST_SAMPLES = 2_048
_SHORTEST_S = 20e-6
"""The time between two events, from which it becomes a span."""
_SHORTEST_WAIT_NS = 2_000
_SLACK_S = 2e-6
"""The precision of times in float seconds."""
_BETWEEN = {Phase.TRACING: "recording operations", Phase.LOADER: "loading data", Phase.PYTHON: "other Python code"}


class _Noted(NamedTuple):
    """An event without its buffers and graph, so as not to keep them alive. waits: nanoseconds that it waited at its start and end."""

    thread: int
    phase: str
    name: str
    start_s: float
    duration_ns: int
    line: str | None
    waits: tuple[int, int] = (0, 0)
    track: str = HOST
    ends_step: bool = False

    @property
    def end_s(self) -> float:
        """The end in seconds since the epoch."""
        return self.start_s + self.duration_ns * 1e-9


class _Gap(NamedTuple):
    """The time between two events of the thread that steps. place: the lines of the two events, the same in each step."""

    start_s: float
    end_s: float
    place: tuple[str | None, str | None]


@dataclass(slots=True)
class _PlaceSamples:
    """The samples of a phase at a place. moments: the weighted sum of their positions in the gap, from 0 to 1."""

    weight: float = 0.0
    moments: float = 0.0
    lines: Counter[str] = field(default_factory=Counter)


class SpanTimeline(Listener):
    """Keeps the newest events of this process, from `start` to `stop`. `spans` may be called from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._noted: deque[_Noted] = deque(maxlen=_MOST_EVENTS)
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)

    def add_samples(self, samples: Iterable[Sample]) -> None:
        """Add samples of the thread that steps, oldest first, except those added before."""
        newest_s = self._samples[-1].time_s if self._samples else 0.0
        self._samples.extend(sample for sample in samples if sample.time_s > newest_s)

    def note_own_work(self, start_s: float, duration_ns: int, line: str | None) -> None:
        """Note that this tool worked in the calling thread, after the sync of a line."""
        # It gets the sync's line, so that the next gap has the same place as in other steps.
        self._noted.append(_Noted(threading.get_ident(), TOOL, "xla-debug counts live buffers", start_s, duration_ns, line))

    def _compiled(self, event: events.CompileEvent) -> None:
        name = f"compile {_program(event)}"
        self._noted.append(_Noted(threading.get_ident(), Phase.COMPILE.value, name, event.start_s, event.duration_ns, event.line))

    def _executed(self, event: events.ExecuteEvent) -> None:
        thread, name = threading.get_ident(), _program(event)
        self._noted.append(_Noted(thread, DEVICE, name, event.start_s, event.duration_ns, event.line, track=event.device))
        if event.blocked_ns:
            self._noted.append(_Noted(thread, Phase.WAITING.value, name, event.start_s, event.blocked_ns, event.line))

    def _moved(self, event: events.TransferEvent) -> None:
        up = event.direction is events.Direction.TO_DEVICE
        name = f"{event.nbytes:,} bytes {'to' if up else 'from'} the device"
        waits = event.waited_ns, 0
        self._noted.append(_Noted(threading.get_ident(), Phase.TRANSFER.value, name, event.start_s, event.duration_ns, event.line, waits))

    def _fell_back(self, event: events.FallbackEvent) -> None:
        self._noted.append(
            _Noted(threading.get_ident(), Phase.FALLBACK.value, event.operator, event.start_s, event.duration_ns, event.line)
        )

    def _synced(self, event: events.SyncEvent) -> None:
        step = event.kind is events.SyncKind.STEP
        name, waits = "sync of a step" if step else "run for a read", (0, event.waited_ns)
        noted = _Noted(threading.get_ident(), Phase.LOOKUP.value, name, event.start_s, event.duration_ns, event.line, waits, ends_step=step)
        self._noted.append(noted)

    def _waited_for_replicas(self, event: collectives.ReplicaWaitEvent) -> None:
        if event.duration_ns >= _SHORTEST_WAIT_NS:
            thread, name = threading.get_ident(), "waiting for the other replicas"
            self._noted.append(_Noted(thread, Phase.WAITING.value, name, event.start_s, event.duration_ns, event.line))

    def spans(self, thread: int | None, steps: int | None = STEPS) -> list[Span]:
        """List the spans of the last steps, by start. thread: the one that runs the steps. steps: how many; None: all that are kept."""
        noted = sorted(self._noted.copy(), key=lambda event: (event.start_s, -event.duration_ns))
        ends = sorted(event.end_s for event in noted if event.ends_step and event.thread == thread)
        begin_s = ends[-steps - 1] if steps is not None and len(ends) > steps else 0.0
        recent = [event for event in noted if event.end_s > begin_s]
        spans = [*_host_spans(recent, thread), *_device_spans(recent), *_gap_spans(noted, thread, self._samples.copy(), begin_s)]
        recent_spans = sorted((span for span in spans if span.start_s + _SLACK_S >= begin_s), key=lambda span: (span.start_s, -span.ms))
        return recent_spans[-_MOST_SPANS:]


def _program(event: events.CompileEvent | events.ExecuteEvent) -> str:
    named = event.name or f"program {event.graph_hash[:8]}"
    return f"{named}, {event.num_nodes} operation{'' if event.num_nodes == 1 else 's'}"


def _host_spans(noted: Iterable[_Noted], thread: int | None) -> Iterator[Span]:
    """Make the spans of the host, with spans of waiting inside others, and the spans of copies."""
    thread_numbers: dict[int, int] = {}
    for event in noted:
        if event.track != HOST:
            continue
        track = HOST if event.thread == thread else f"thread {thread_numbers.setdefault(event.thread, len(thread_numbers) + 1)}"
        yield Span(track, event.phase, event.name, event.start_s, event.duration_ns * 1e-6, None if event.phase == TOOL else event.line)
        before_ns, after_ns = event.waits
        if before_ns >= _SHORTEST_WAIT_NS:
            yield Span(track, Phase.WAITING.value, "waiting for the device", event.start_s, before_ns * 1e-6, event.line)
        if after_ns >= _SHORTEST_WAIT_NS:
            start_s = event.end_s - after_ns * 1e-9
            yield Span(track, Phase.WAITING.value, "waiting for the device", start_s, after_ns * 1e-6, event.line)
        if event.phase == Phase.TRANSFER.value:
            copied_ns = max(event.duration_ns - before_ns, 0)
            yield Span(
                "copies" if track == HOST else f"copies of {track}",
                event.phase,
                event.name,
                event.start_s + before_ns * 1e-9,
                copied_ns * 1e-6,
                event.line,
            )


def _device_spans(noted: Iterable[_Noted]) -> Iterator[Span]:
    """Make the spans of the devices: a program begins no earlier than the one before it ends."""
    until: dict[str, float] = {}
    for event in noted:
        if event.track != HOST:
            start_s = max(event.start_s, until.get(event.track, 0.0))
            until[event.track] = max(event.end_s, start_s)
            ms = max(event.end_s - start_s, 0.0) * 1e3
            yield Span(event.track, event.phase, event.name, start_s, ms, event.line, launched_s=event.start_s)


def _gap_spans(noted: Iterable[_Noted], thread: int | None, samples: Iterable[Sample], begin_s: float) -> Iterator[Span]:
    """Make spans of what the thread that steps did between its events from `begin_s` on, by samples at the same places.

    A gap without samples counts as recording operations, the likeliest.
    """
    gaps = list(_gaps(noted, thread))
    seen = _samples_by_place(gaps, samples)
    for gap in gaps:
        if gap.end_s <= begin_s:
            continue
        phases = seen.get(gap.place, {})
        total = sum(phase_samples.weight for phase_samples in phases.values())
        start_s, length_s = gap.start_s, gap.end_s - gap.start_s
        if not total:
            yield Span(HOST, Phase.TRACING.value, _BETWEEN[Phase.TRACING], start_s, length_s * 1e3, estimated=True)
        for phase, phase_samples in sorted(phases.items(), key=lambda item: item[1].moments / item[1].weight):
            part_s = length_s * phase_samples.weight / total
            ((line, _),) = phase_samples.lines.most_common(1)
            yield Span(HOST, phase.value, _BETWEEN[phase], start_s, part_s * 1e3, line, estimated=True)
            start_s += part_s


def _gaps(noted: Iterable[_Noted], thread: int | None) -> Iterator[_Gap]:
    outermost: list[_Noted] = []
    until_s = 0.0
    for event in noted:
        if event.thread == thread and event.track == HOST and event.end_s > until_s + _SLACK_S:
            outermost.append(event)
            until_s = event.end_s
    for before, after in pairwise(outermost):
        if after.start_s - before.end_s >= _SHORTEST_S:
            yield _Gap(before.end_s, after.start_s, (before.line, after.line))


def _samples_by_place(gaps: list[_Gap], samples: Iterable[Sample]) -> Mapping[tuple[str | None, str | None], dict[Phase, _PlaceSamples]]:
    starts = [gap.start_s for gap in gaps]
    by_place: defaultdict[tuple[str | None, str | None], dict[Phase, _PlaceSamples]] = defaultdict(dict)
    for sample in samples:
        index = bisect_right(starts, sample.time_s) - 1
        if index < 0 or sample.time_s > gaps[index].end_s:
            continue
        gap = gaps[index]
        phase_samples = by_place[gap.place].setdefault(sample.phase, _PlaceSamples())
        phase_samples.weight += sample.weight
        phase_samples.moments += sample.weight * (sample.time_s - gap.start_s) / (gap.end_s - gap.start_s)
        phase_samples.lines[sample.line] += sample.weight
    return by_place
