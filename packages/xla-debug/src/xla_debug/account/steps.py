"""Divide the time of the thread that steps: told by events, split by samples where none tells.

What runs in each step only takes notes; they are added up when somebody asks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from xla_debug.account.findings import WARM_UP
from xla_debug.account.sampler import Sample
from xla_debug.account.schema import HotLine, Phase, Step
from xla_debug.core import abi

TIMELINE = 512
"""Steps kept one by one; of a longer run every second, fourth, … one."""
_LONGER = 8
"""Steps of a run from which those of the warm-up do not count: imports, first compilations."""
_SPLIT_FROM = 3
"""Samples in a step from which its own split the host's time; below, those of the run do."""
_HOST = (Phase.TRACING, Phase.LOADER, Phase.PYTHON)
_HOT_LINES = 20
_SLACK_S = 1e-6
"""Events that started this much earlier are still inside: clocks of float seconds are not finer."""


class Told(NamedTuple):
    """An event of the thread that steps. waited_ns: the part of it that is waiting."""

    phase: Phase
    start_s: float
    duration_ns: int
    waited_ns: int = 0


class Restart(NamedTuple):
    """A new start of this step: what was done until `time_s` is none of it."""

    time_s: float


Note = Told | Restart | abi.ExecuteEvent | abi.SyncEvent


@dataclass(slots=True)
class _Noted:
    """A step. told: in the order of their ends. samples: what was seen in it."""

    start_s: float
    end_s: float = 0.0
    told: list[Told] = field(default_factory=list)
    device_ns: int = 0
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class Spent:
    """Time of steps: of the host by phase, of the device, and where the host was seen in its own time, by phase and line."""

    steps: int = 0
    ns: Counter[Phase] = field(default_factory=Counter)
    samples: Counter[tuple[Phase, str]] = field(default_factory=Counter)
    device_ns: int = 0

    def copy(self) -> Spent:
        """As of now."""
        return Spent(self.steps, self.ns.copy(), self.samples.copy(), self.device_ns)

    def since(self, start: Spent) -> Spent:
        """The part after `start`."""
        return Spent(self.steps - start.steps, self.ns - start.ns, self.samples - start.samples, self.device_ns - start.device_ns)

    def phases_ms(self) -> dict[str, float]:
        """By `Phase.value`."""
        return {phase.value: ns * 1e-6 for phase, ns in self.ns.items() if ns}

    def hot_lines(self) -> list[HotLine]:
        """Shares of the samples, as milliseconds of the host's own time."""
        total = max(self.samples.total(), 1)
        own_ms = sum(self.ns[phase] for phase in _HOST) * 1e-6
        return [HotLine(line, phase.value, own_ms * count / total) for (phase, line), count in self.samples.most_common(_HOT_LINES)]


class Steps:
    """The steps of one thread, made of notes. Only `notes` may be added to from any thread."""

    def __init__(self, start_s: float) -> None:
        self.notes: deque[Note] = deque()
        """What happened, in the order of its ends; a SyncEvent here ends a step."""
        self._running = _Noted(start_s)
        self._seen: Counter[Phase] = Counter()
        self._spent = Spent()
        self._warm_up = Spent()
        self._stride = 1
        self._timeline: deque[Step] = deque()
        self._device_until_s = 0.0

    def settle(self, samples: deque[Sample]) -> None:
        """Add up the notes, and what was seen in the steps that have ended, oldest first; takes that from `samples`."""
        ended = list(self._ended(samples))
        for noted in ended[max(WARM_UP - self._spent.steps, 0) :]:
            self._seen.update(sample.phase for sample in noted.samples)
        for noted in ended:
            self._add(noted)

    def _ended(self, samples: deque[Sample]) -> Iterator[_Noted]:
        notes, running = self.notes, self._running
        while notes:
            note = notes.popleft()
            if isinstance(note, Told):
                running.told.append(note)
            elif isinstance(note, abi.ExecuteEvent):
                running.device_ns += self._busy(note.start_s, note.duration_ns)
            elif isinstance(note, abi.SyncEvent):
                running.told.append(Told(Phase.LOOKUP, note.start_s, note.duration_ns, note.waited_ns))
                running.end_s = note.start_s + note.duration_ns * 1e-9
                while samples and samples[0].time_s <= running.end_s:
                    running.samples.append(samples.popleft())
                yield running
                running = self._running = _Noted(running.end_s)
            else:
                running.start_s = note.time_s

    def _add(self, noted: _Noted) -> None:
        """Split what no event tells as the samples say: those of the step, or of the run if they are few."""
        spent, samples = self._spent, noted.samples
        spent.samples.update((sample.phase, sample.line) for sample in samples)
        ns, told_ns = own_times(noted.told)
        few = len(samples) < _SPLIT_FROM and self._seen
        split = self._seen if few else Counter(sample.phase for sample in samples)
        total = split.total()
        rest_ns = max(int((noted.end_s - noted.start_s) * 1e9) - told_ns, 0)
        for phase in _HOST:
            part = rest_ns * split[phase] // total if total else rest_ns * (phase is Phase.TRACING)
            if part:
                ns[phase] = ns.get(phase, 0) + part
        abi.metric_add("LazyTracing", ns.get(Phase.TRACING, 0), abi.Unit.DURATION_NS)
        for phase, value in ns.items():
            spent.ns[phase] += value
        spent.device_ns += noted.device_ns
        if spent.steps % self._stride == 0:
            self._keep(noted, ns)
        spent.steps += 1
        if spent.steps == WARM_UP:
            self._warm_up = spent.copy()

    def _busy(self, start_s: float, duration_ns: int) -> int:
        """The device time of a program, in ns, without that in which it waited for earlier programs."""
        end_s = start_s + duration_ns * 1e-9
        busy_s = max(end_s - max(start_s, self._device_until_s), 0.0)
        self._device_until_s = max(end_s, self._device_until_s)
        return int(busy_s * 1e9)

    def _keep(self, noted: _Noted, ns: Mapping[Phase, int]) -> None:
        compiles = sum(told.phase is Phase.COMPILE for told in noted.told)
        ms = {phase.value: value * 1e-6 for phase, value in ns.items()}
        self._timeline.append(Step(noted.start_s, ms, noted.device_ns * 1e-6, compiles))
        if len(self._timeline) > TIMELINE:
            self._timeline = deque(list(self._timeline)[::2])
            self._stride *= 2

    @property
    def settled(self) -> int:
        """The number of steps that have been added up."""
        return self._spent.steps

    def measured(self) -> Spent:
        """The sums: without the warm-up, if the run is long enough."""
        return self._spent.since(self._warm_up) if self._spent.steps >= _LONGER else self._spent.copy()

    def timeline(self) -> list[Step]:
        """The steps, or evenly chosen ones of a long run, oldest first."""
        return list(self._timeline)


def own_times(events: Iterable[Told]) -> tuple[dict[Phase, int], int]:
    """Nanoseconds by phase, each event's without that of the events inside it; and of all together, in the order of their ends."""
    ns: dict[Phase, int] = {}
    outermost: list[tuple[float, int]] = []
    for phase, start_s, duration_ns, waited_ns in events:
        inside = 0
        while outermost and outermost[-1][0] >= start_s - _SLACK_S:
            inside += outermost.pop()[1]
        outermost.append((start_s, duration_ns))
        ns[phase] = ns.get(phase, 0) + max(duration_ns - inside - waited_ns, 0)
        if waited_ns:
            ns[Phase.WAITING] = ns.get(Phase.WAITING, 0) + waited_ns
    return ns, sum(duration_ns for _, duration_ns in outermost)
