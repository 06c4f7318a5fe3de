"""Divide the time of the thread that runs the steps into phases: by timed events, and by samples between them.

A running step only takes notes, which are added up when a report is made.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from xla_debug.core import events as events_abi
from xla_debug.recording.sampler import Sample
from xla_debug.run_report.findings import WARM_UP
from xla_debug.run_report.schema import HotLine, Phase, Step

TIMELINE = 512
"""Steps kept one by one, at most; of a longer run every second, fourth, … step is kept."""
_LONGER = 8
"""Steps of a run, from which its warm-up (imports, first compilations) does not count."""
_SPLIT_FROM = 3
"""Samples in a step, from which they divide its host time; with fewer, the samples of the run divide it."""
_HOST = (Phase.TRACING, Phase.LOADER, Phase.PYTHON)
_HOT_LINES = 20
_SLACK_S = 1e-6
"""An event that starts this much earlier still counts as inside another: float seconds are not finer."""


class TimedEvent(NamedTuple):
    """A timed event of the thread that runs the steps. waited_ns: the part of it that is waiting."""

    phase: Phase
    start_s: float
    duration_ns: int
    waited_ns: int = 0


class Moved(NamedTuple):
    """Bytes that any thread copied."""

    to_device: int
    from_device: int


class Restart(NamedTuple):
    """A new start of the current step: time before `time_s` does not count."""

    time_s: float


Note = TimedEvent | Moved | Restart | events_abi.ExecuteEvent | events_abi.SyncEvent


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The measurements of a step. ns: of the thread that steps, by phase; device_ns: the device at work; the rest are counts and bytes."""

    index: int
    start_s: float
    end_s: float
    ns: Mapping[Phase, int]
    device_ns: int
    compiles: int
    reads: int
    fallbacks: int
    to_device: int
    from_device: int


@dataclass(slots=True)
class _StepNotes:
    """The notes of a step. events: in the order of their ends. samples: those taken in it."""

    start_s: float
    end_s: float = 0.0
    events: list[TimedEvent] = field(default_factory=list)
    device_ns: int = 0
    to_device: int = 0
    from_device: int = 0
    samples: list[Sample] = field(default_factory=list)

    def count(self, phase: Phase) -> int:
        """Count the step's events of a phase."""
        return sum(event.phase is phase for event in self.events)


@dataclass(slots=True)
class TimeTotals:
    """Sums over steps: the host's time by phase, the device's time, and samples of the host's own time by phase and line."""

    steps: int = 0
    ns: Counter[Phase] = field(default_factory=Counter)
    samples: Counter[tuple[Phase, str]] = field(default_factory=Counter)
    device_ns: int = 0

    def copy(self) -> TimeTotals:
        """Copy the sums up to now."""
        return TimeTotals(self.steps, self.ns.copy(), self.samples.copy(), self.device_ns)

    def since(self, start: TimeTotals) -> TimeTotals:
        """Subtract the earlier sums `start`."""
        return TimeTotals(self.steps - start.steps, self.ns - start.ns, self.samples - start.samples, self.device_ns - start.device_ns)

    def phases_ms(self) -> dict[str, float]:
        """The host's milliseconds by `Phase.value`."""
        return {phase.value: ns * 1e-6 for phase, ns in self.ns.items() if ns}

    def hot_lines(self) -> list[HotLine]:
        """List the lines with most samples, with their share of the host's own time in milliseconds."""
        total = max(self.samples.total(), 1)
        work_ms = sum(self.ns[phase] for phase in _HOST) * 1e-6
        return [HotLine(line, phase.value, work_ms * count / total) for (phase, line), count in self.samples.most_common(_HOT_LINES)]


class Steps:
    """Makes the steps of one thread out of notes. Any thread may add to `notes`.

    keep_each: also keep each step in `each`.
    """

    def __init__(self, start_s: float, keep_each: bool = False) -> None:
        self.notes: deque[Note] = deque()
        """Notes in the order of their ends; a SyncEvent ends a step."""
        self.each: deque[MeasuredStep] | None = deque() if keep_each else None
        """The steps that have been added up; the reader removes them."""
        self._running = _StepNotes(start_s)
        self._phase_samples: Counter[Phase] = Counter()
        self._totals = TimeTotals()
        self._warm_up = TimeTotals()
        self._stride = 1
        self._timeline: deque[Step] = deque()
        self._device_until_s = 0.0

    def accumulate(self, samples: deque[Sample]) -> None:
        """Add up the notes and the samples of the steps that have ended, and remove these samples."""
        ended = list(self._ended(samples))
        # Before any step is divided: steps with few samples use the sums of all. Without the warm-up, which no later step resembles.
        for step in ended[max(WARM_UP - self._totals.steps, 0) :]:
            self._phase_samples += _phases(step.samples)
        for step in ended:
            self._add_step(step)

    def _ended(self, samples: deque[Sample]) -> Iterator[_StepNotes]:
        notes, running = self.notes, self._running
        while notes:
            note = notes.popleft()
            if isinstance(note, TimedEvent):
                running.events.append(note)
            elif isinstance(note, events_abi.ExecuteEvent):
                running.device_ns += self._busy(note.start_s, note.duration_ns)
            elif isinstance(note, Moved):
                running.to_device += note.to_device
                running.from_device += note.from_device
            elif isinstance(note, events_abi.SyncEvent):
                # After the events inside it, since `self_times` needs the order of the ends.
                running.events.append(TimedEvent(Phase.LOOKUP, note.start_s, note.duration_ns, note.waited_ns))
                running.end_s = note.start_s + note.duration_ns * 1e-9
                while samples and samples[0].time_s <= running.end_s:
                    running.samples.append(samples.popleft())
                yield running
                running = self._running = _StepNotes(running.end_s)
            else:
                running.start_s = note.time_s

    def _add_step(self, step: _StepNotes) -> None:
        """Divide the step's time outside events in proportion to its samples, or to the run's samples if it has few."""
        totals, samples = self._totals, step.samples
        for sample in samples:
            totals.samples[sample.phase, sample.line] += sample.weight
        ns, events_ns = self_times(step.events)
        few = len(samples) < _SPLIT_FROM and self._phase_samples
        split = self._phase_samples if few else _phases(samples)
        total = split.total()
        rest_ns = max(int((step.end_s - step.start_s) * 1e9) - events_ns, 0)
        for phase in _HOST:
            # Without any sample all of it counts as tracing, the likeliest phase.
            part = rest_ns * split[phase] // total if total else rest_ns * (phase is Phase.TRACING)
            if part:
                ns[phase] = ns.get(phase, 0) + part
        for phase, value in ns.items():
            totals.ns[phase] += value
        totals.device_ns += step.device_ns
        if self.each is not None:
            self.each.append(_measured(totals.steps, step, ns))
        if totals.steps % self._stride == 0:
            self._add_to_timeline(step, ns)
        totals.steps += 1
        if totals.steps == WARM_UP:
            self._warm_up = totals.copy()

    def _busy(self, start_s: float, duration_ns: int) -> int:
        """The nanoseconds that a program ran on the device, without its wait for earlier programs."""
        end_s = start_s + duration_ns * 1e-9
        busy_s = max(end_s - max(start_s, self._device_until_s), 0.0)
        self._device_until_s = max(end_s, self._device_until_s)
        return int(busy_s * 1e9)

    def _add_to_timeline(self, step: _StepNotes, ns: Mapping[Phase, int]) -> None:
        ms = {phase.value: value * 1e-6 for phase, value in ns.items()}
        self._timeline.append(Step(step.start_s, ms, step.device_ns * 1e-6, step.count(Phase.COMPILE)))
        if len(self._timeline) > TIMELINE:
            self._timeline = deque(list(self._timeline)[::2])
            self._stride *= 2

    @property
    def count(self) -> int:
        """The number of steps that have been added up."""
        return self._totals.steps

    def measured(self) -> TimeTotals:
        """The sums, without the warm-up if the run is long enough."""
        return self._totals.since(self._warm_up) if self._totals.steps >= _LONGER else self._totals.copy()

    def timeline(self) -> list[Step]:
        """The steps, or evenly chosen ones of a long run, oldest first."""
        return list(self._timeline)


def _measured(index: int, step: _StepNotes, ns: Mapping[Phase, int]) -> MeasuredStep:
    return MeasuredStep(
        index=index,
        start_s=step.start_s,
        end_s=step.end_s,
        ns=ns,
        device_ns=step.device_ns,
        compiles=step.count(Phase.COMPILE),
        reads=step.count(Phase.LOOKUP) - 1,  # the last is the step's own sync
        fallbacks=step.count(Phase.FALLBACK),
        to_device=step.to_device,
        from_device=step.from_device,
    )


def _phases(samples: Iterable[Sample]) -> Counter[Phase]:
    weights: Counter[Phase] = Counter()
    for sample in samples:
        weights[sample.phase] += sample.weight
    return weights


def self_times(events: Iterable[TimedEvent]) -> tuple[dict[Phase, int], int]:
    """Add up events, given in the order of their ends: nanoseconds by phase, each without the events inside it; and of all together."""
    ns: dict[Phase, int] = {}
    outermost: list[tuple[float, int]] = []
    for phase, start_s, duration_ns, waited_ns in events:
        inside_ns = 0
        while outermost and outermost[-1][0] >= start_s - _SLACK_S:
            inside_ns += outermost.pop()[1]
        outermost.append((start_s, duration_ns))
        ns[phase] = ns.get(phase, 0) + max(duration_ns - inside_ns - waited_ns, 0)
        if waited_ns:
            ns[Phase.WAITING] = ns.get(Phase.WAITING, 0) + waited_ns
    return ns, sum(duration_ns for _, duration_ns in outermost)
