"""Adds up what the core announces while a program runs, step by step; `replica` gives it all as of now."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from xla_debug.account.differences import KnownPrograms
from xla_debug.account.findings import WARM_UP, find_problems
from xla_debug.account.memory import Watcher
from xla_debug.account.sampler import Sampler
from xla_debug.account.schema import Compile, Fallback, HotLine, Live, Phase, Replica, Step, Sync, Transfer
from xla_debug.account.verdict import verdict_of
from xla_debug.core import abi

_TIMELINE = 512
"""Steps kept one by one; of a longer run every second, fourth, … one."""
_LONGEST_TEXT = 200_000
_MOST_COMPILES = 1_000
_LONGER = 8
"""Steps of a run from which those of the warm-up do not count: imports, first compilations."""
_SPLIT_FROM = 3
"""Samples in a step from which its own split the host's time; below, those of the run do."""
_HOST = (Phase.TRACING, Phase.LOADER, Phase.PYTHON)
_HOT_LINES = 20
_QUIET_STEPS = 16
"""Steps without a compilation after which operations no longer keep their own lines."""
_SLACK_S = 1e-6
"""Events that started this much earlier are still inside: clocks of float seconds are not finer."""

Key = TypeVar("Key")


@dataclass(slots=True)
class _Total:
    count: int = 0
    nbytes: int = 0
    ns: int = 0
    steps: int = 0
    last_step: int = -1

    def add(self, ns: int, nbytes: int = 0, step: int = 0) -> None:
        self.count += 1
        self.ns += ns
        self.nbytes += nbytes
        self.steps += step != self.last_step
        self.last_step = step


@dataclass(slots=True)
class _Running:
    """The step that is under way. open: (start, length in ns) of events that ended in it and are inside no other so far."""

    start_s: float
    ns: Counter[Phase] = field(default_factory=Counter)
    open: list[tuple[float, int]] = field(default_factory=list)
    device_ns: int = 0
    compiles: int = 0


@dataclass(slots=True)
class _Spent:
    """Time of steps: of the host by phase, of the device, and where the host was seen in its own time, by phase and line."""

    ns: Counter[Phase] = field(default_factory=Counter)
    seen: Counter[Phase] = field(default_factory=Counter)
    samples: Counter[tuple[Phase, str]] = field(default_factory=Counter)
    device_ns: int = 0

    def copy(self) -> _Spent:
        """As of now."""
        return _Spent(self.ns.copy(), self.seen.copy(), self.samples.copy(), self.device_ns)

    def since(self, start: _Spent) -> _Spent:
        """What came after `start`."""
        return _Spent(self.ns - start.ns, self.seen - start.seen, self.samples - start.samples, self.device_ns - start.device_ns)

    def hot_lines(self) -> list[HotLine]:
        """Shares of the samples, as milliseconds of the host's own time."""
        total = max(self.samples.total(), 1)
        own_ms = sum(self.ns[phase] for phase in _HOST) * 1e-6
        return [HotLine(line, phase.value, own_ms * count / total) for (phase, line), count in self.samples.most_common(_HOT_LINES)]


class Collector:
    """One for a process. Subscribers run in the thread where things happen; `replica` may be asked for from any."""

    def __init__(self) -> None:
        self.started_s = time.time()
        self.sampler = Sampler()
        self._known = KnownPrograms()
        self._watcher = Watcher()
        self._lock = threading.Lock()
        self._step = _Running(self.started_s)
        self._steps = 0
        self._stride = 1
        self._timeline: deque[Step] = deque()
        self._spent = _Spent()
        self._warm_up = _Spent()
        self._device_until_s = 0.0
        self._compiles: list[Compile] = []
        self._syncs: dict[tuple[str | None, str, str | None], _Total] = {}
        self._fallbacks: dict[tuple[str, str | None], _Total] = {}
        self._transfers: dict[tuple[str, str | None], _Total] = {}
        self._waited: dict[str | None, _Total] = {}
        self._memory_over_time: deque[tuple[float, int]] = deque(maxlen=_TIMELINE)
        self._quiet = 0
        self._exact = False
        self._end: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to listen and to look."""
        origins = self._watcher.origins
        self._end = [
            abi.subscribe(self._compiled, abi.CompileEvent),
            abi.subscribe(self._executed, abi.ExecuteEvent),
            abi.subscribe(self._moved, abi.TransferEvent),
            abi.subscribe(self._fell_back, abi.FallbackEvent),
            abi.subscribe(self._synced, abi.SyncEvent),
            abi.register_wrapper(origins.wrapper),
        ]
        self.sampler.start()

    def stop(self) -> None:
        """Listen and look no longer."""
        self.sampler.stop()
        for end in self._end:
            end()
        self._end = []
        self._keep_lines(False)

    @property
    def idle(self) -> bool:
        """Whether nothing has happened yet, perhaps because no device was needed."""
        return not (self._steps or self._compiles or self._transfers or self._syncs)

    def live(self) -> list[Live]:
        """What filled the devices when they were fullest, now included; the largest first."""
        self._watcher.look()
        return self._watcher.live

    def _here(self) -> bool:
        return threading.get_ident() == self.sampler.thread

    def _enter(self, start_s: float, duration_ns: int) -> int:
        """Of an event that has just ended in the thread that steps: its own time, without that of the events inside."""
        inside = 0
        events = self._step.open
        while events and events[-1][0] >= start_s - _SLACK_S:
            inside += events.pop()[1]
        events.append((start_s, duration_ns))
        return max(duration_ns - inside, 0)

    def _compiled(self, event: abi.CompileEvent) -> None:
        difference = self._known.explain(event)
        text = abi.graph_text(event.graph) if event.num_nodes < 2_000 else ""
        with self._lock:
            if self._here():
                self._step.ns[Phase.COMPILE] += self._enter(event.start_s, event.duration_ns)
                self._step.compiles += 1
            if len(self._compiles) < _MOST_COMPILES:
                self._compiles.append(
                    Compile(
                        start_s=event.start_s,
                        ms=event.duration_ns * 1e-6,
                        step=self._steps,
                        line=event.line,
                        cause=None if event.cause is None else event.cause.value,
                        name=event.name,
                        graph_hash=event.graph_hash,
                        operations=event.num_nodes,
                        inputs=event.num_inputs,
                        results=event.num_outputs,
                        difference=difference,
                        graph=text if len(text) <= _LONGEST_TEXT else "",
                    )
                )

    def _executed(self, event: abi.ExecuteEvent) -> None:
        with self._lock:
            end_s = event.start_s + event.duration_ns * 1e-9
            busy_ns = int(max(end_s - max(event.start_s, self._device_until_s), 0.0) * 1e9)
            self._device_until_s = max(end_s, self._device_until_s)
            self._step.device_ns += busy_ns
            if event.blocked_ns and self._here():
                self._step.ns[Phase.WAITING] += self._enter(event.start_s, event.blocked_ns)

    def _moved(self, event: abi.TransferEvent) -> None:
        self._watcher.origins.uploaded(event)
        with self._lock:
            own = event.duration_ns - event.waited_ns
            self._transfers.setdefault((event.direction.value, event.line), _Total()).add(own, event.nbytes, self._steps)
            if event.direction is abi.Direction.FROM_DEVICE:
                self._waited.setdefault(event.line, _Total()).add(event.waited_ns, 0, self._steps)
            if self._here():
                self._step.ns[Phase.TRANSFER] += max(self._enter(event.start_s, event.duration_ns) - event.waited_ns, 0)
                self._step.ns[Phase.WAITING] += event.waited_ns

    def _fell_back(self, event: abi.FallbackEvent) -> None:
        with self._lock:
            self._fallbacks.setdefault((event.operator, event.line), _Total()).add(event.duration_ns, event.nbytes, self._steps)
            if self._here():
                self._step.ns[Phase.FALLBACK] += self._enter(event.start_s, event.duration_ns)

    def _synced(self, event: abi.SyncEvent) -> None:
        stepped = event.kind is abi.SyncKind.STEP
        with self._lock:
            if stepped:
                self.sampler.thread = threading.get_ident()
            cause = None if event.cause is None else event.cause.value
            self._syncs.setdefault((event.line, event.kind.value, cause), _Total()).add(event.duration_ns, 0, self._steps)
            if not self._here():
                return
            self._step.ns[Phase.LOOKUP] += max(self._enter(event.start_s, event.duration_ns) - event.waited_ns, 0)
            self._step.ns[Phase.WAITING] += event.waited_ns
            if stepped:
                self._end_step(event.start_s + event.duration_ns * 1e-9)
        if stepped and self._watcher.after_step(self._steps):
            self._step.start_s = time.time()  # the step need not pay for that

    def _end_step(self, end_s: float) -> None:
        """Close the step that is under way: what no event tells is split as the samples say."""
        step, spent = self._step, self._spent
        samples = self.sampler.take()
        seen = _phases(samples)
        spent.samples.update(samples)
        spent.seen.update(seen)
        split = seen if seen.total() >= _SPLIT_FROM else spent.seen
        total = split.total()
        told_ns = sum(length for _, length in step.open)
        rest_ns = max(int((end_s - step.start_s) * 1e9) - told_ns, 0)
        for phase in _HOST:
            step.ns[phase] += rest_ns * split[phase] // total if total else rest_ns * (phase is Phase.TRACING)
        spent.ns.update(step.ns)
        spent.device_ns += step.device_ns
        if self._steps == WARM_UP - 1:
            self._warm_up = spent.copy()
        if self._steps % self._stride == 0:
            ms = {phase.value: ns * 1e-6 for phase, ns in step.ns.items() if ns}
            self._timeline.append(Step(step.start_s, ms, step.device_ns * 1e-6, step.compiles))
            if len(self._timeline) > _TIMELINE:
                self._timeline = deque(list(self._timeline)[::2])
                self._stride *= 2
        abi.metric_add("LazyTracing", step.ns[Phase.TRACING], abi.Unit.DURATION_NS)
        self._steps += 1
        self._step = _Running(end_s)
        self._quiet = 0 if step.compiles else self._quiet + 1
        self._keep_lines(self._quiet == 0 and self._steps > WARM_UP or self._exact and self._quiet < _QUIET_STEPS)

    def _keep_lines(self, exact: bool) -> None:
        """Whether each recorded operation keeps its own line, which costs: while programs change, to say where they do."""
        if exact is not self._exact:
            self._exact = exact
            abi.capture_lines(exact)

    def replica(self, finished: bool) -> Replica:
        """Everything so far."""
        if finished:
            self._watcher.look()
        memory = self._watcher.memory()
        self._memory_over_time.append((time.time(), sum(device.in_use for device in memory.devices)))
        memory = replace(memory, over_time=list(self._memory_over_time))
        with self._lock:
            syncs = [
                Sync(line, kind, cause, total.count, total.steps, total.ns * 1e-6)
                for (line, kind, cause), total in _costliest(self._syncs)
            ]  # fmt: skip
            fallbacks = [
                Fallback(operator, line, total.count, total.nbytes, total.ns * 1e-6)
                for (operator, line), total in _costliest(self._fallbacks)
            ]  # fmt: skip
            transfers = [
                Transfer(direction, line, total.count, total.nbytes, total.ns * 1e-6)
                for (direction, line), total in _costliest(self._transfers)
            ]  # fmt: skip
            waits = {line: (total.steps, total.ns * 1e-6) for line, total in self._waited.items() if line is not None}
            longer = self._steps >= _LONGER
            spent = self._spent.since(self._warm_up) if longer else self._spent
            phases_ms = {phase.value: ns * 1e-6 for phase, ns in spent.ns.items()}
            device_ms = spent.device_ns * 1e-6
            found = Replica(
                ordinal=abi.topology().process_index,
                pid=os.getpid(),
                host=platform.node(),
                hardware=abi.client().devices[0].device_kind,
                started_s=self.started_s,
                seconds=time.time() - self.started_s,
                finished=finished,
                steps=self._steps,
                verdict=verdict_of(phases_ms, device_ms),
                phases_ms=phases_ms,
                device_ms=device_ms,
                measured_steps=self._steps - (WARM_UP if longer else 0),
                timeline=list(self._timeline),
                compiles=list(self._compiles),
                syncs=syncs,
                fallbacks=fallbacks,
                transfers=transfers,
                memory=memory,
                hot_lines=spent.hot_lines(),
            )
        problems = find_problems(found, waits)
        return replace(found, findings=[*problems, *([self._watcher.finding] if self._watcher.finding else [])])


def _phases(samples: Counter[tuple[Phase, str]]) -> Counter[Phase]:
    found: Counter[Phase] = Counter()
    for (phase, _), count in samples.items():
        found[phase] += count
    return found


def _costliest(totals: dict[Key, _Total]) -> list[tuple[Key, _Total]]:
    return sorted(totals.items(), key=lambda item: -item[1].ns)
