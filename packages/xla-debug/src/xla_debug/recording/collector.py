"""Collect the core's events step by step while a program runs; `replica` gives the sums up to now."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TypeVar

from xla_debug.core import collectives, events, graph, job, metrics, process, texts
from xla_debug.recording.listener import Listener
from xla_debug.recording.memory import MemoryMonitor
from xla_debug.recording.program_differences import KnownPrograms
from xla_debug.recording.sampler import Sampler
from xla_debug.recording.steps import MeasuredStep, Moved, Restart, Steps, TimedEvent
from xla_debug.recording.timeline import SpanTimeline
from xla_debug.run_report.bottleneck import bottleneck_of
from xla_debug.run_report.excerpts import with_excerpts
from xla_debug.run_report.findings import WARM_UP, find_problems
from xla_debug.run_report.schema import Background, Compile, Fallback, Live, Phase, Replica, Sync, Transfer

_OVER_TIME = 512
_LONGEST_TEXT = 200_000
_MOST_COMPILES = 1_000
_QUIET_STEPS = 16
"""Steps without a compilation, after which operations no longer keep their own lines."""

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


class Collector(Listener):
    """Collects the events of this process, each in the thread of the event; `replica` may be called from any thread.

    keep_steps: keep each step until `take_steps`.
    """

    def __init__(self, keep_steps: bool = False) -> None:
        super().__init__()
        self.started_s = time.time()
        self.sampler = Sampler()
        self._known = KnownPrograms()
        self._memory = MemoryMonitor()
        self._timeline = SpanTimeline()
        self._lock = threading.Lock()
        self._steps = Steps(self.started_s, keep_each=keep_steps)
        self._step_thread: int | None = None
        self._step = 0  # the index of the current step
        self._next_check = self._last_compile = -1
        self._compiles: list[Compile] = []
        self._pending_syncs: deque[tuple[int, events.SyncEvent]] = deque()
        self._syncs: dict[tuple[str | None, str, str | None], _Total] = {}
        self._fallbacks: dict[tuple[str, str | None], _Total] = {}
        self._transfers: dict[tuple[str, str | None], _Total] = {}
        self._waited: dict[str | None, _Total] = {}
        self._memory_over_time: deque[tuple[float, int]] = deque(maxlen=_OVER_TIME)
        self._capturing_lines = False
        self._background_before = _background()

    def start(self) -> None:
        """Subscribe to the events and start the sampler."""
        super().start()
        self._unsubscribe.append(graph.register_wrapper(self._memory.allocation_sites.wrap))
        self._timeline.start()
        self.sampler.start()

    def stop(self) -> None:
        """Unsubscribe and stop the sampler."""
        self.sampler.stop()
        self._timeline.stop()
        super().stop()
        self._capture_lines(False)

    @property
    def idle(self) -> bool:
        """Whether there was no event yet, perhaps because the process uses no device."""
        return not (self._step or self._compiles or self._transfers or self._syncs or self._pending_syncs)

    def live(self) -> list[Live]:
        """The buffers at the time when devices held most, up to now; the largest first."""
        self._memory.take_snapshot()
        return self._memory.live

    def take_steps(self) -> list[MeasuredStep]:
        """Remove and return the steps that `replica` has added up since the last call, oldest first."""
        measured = self._steps.each
        return [] if measured is None else [measured.popleft() for _ in range(len(measured))]

    def _in_step_thread(self) -> bool:
        return threading.get_ident() == self.sampler.thread

    def _compiled(self, event: events.CompileEvent) -> None:
        difference = self._known.explain(event)
        # Before taking the lock, since other threads' events would wait for it.
        text = texts.graph_text(event.graph) if event.num_nodes < 2_000 else ""
        with self._lock:
            if self._in_step_thread():
                self._steps.notes.append(TimedEvent(Phase.COMPILE, event.start_s, event.duration_ns))
                self._last_compile = self._next_check = self._step
            if len(self._compiles) < _MOST_COMPILES:
                self._compiles.append(
                    Compile(
                        start_s=event.start_s,
                        ms=event.duration_ns * 1e-6,
                        step=self._step,
                        line=event.line,
                        cause=None if event.cause is None else event.cause.value,
                        name=event.name,
                        graph_hash=event.graph_hash,
                        operations=event.num_nodes,
                        inputs=event.num_inputs,
                        results=event.num_outputs,
                        difference=difference,
                        graph=text if len(text) <= _LONGEST_TEXT else "",
                        donated=len(event.donated),
                        donated_bytes=sum(event.graph.operand(slot).nbytes for slot in event.donated),
                    )
                )

    def _executed(self, event: events.ExecuteEvent) -> None:
        self._steps.notes.append(event)
        # No lock per execution: appends to a deque are thread-safe.
        if event.blocked_ns and self._in_step_thread():
            self._steps.notes.append(TimedEvent(Phase.WAITING, event.start_s, event.blocked_ns))

    def _moved(self, event: events.TransferEvent) -> None:
        self._memory.allocation_sites.add_upload(event)
        to_device = event.direction is events.Direction.TO_DEVICE
        if self._steps.each is not None:
            self._steps.notes.append(Moved(event.nbytes, 0) if to_device else Moved(0, event.nbytes))
        with self._lock:
            copied_ns = max(event.duration_ns - event.waited_ns, 0)
            self._add(self._transfers, (event.direction.value, event.line), self._step, copied_ns, event.nbytes)
            if not to_device:
                self._add(self._waited, event.line, self._step, event.waited_ns)
            if self._in_step_thread():
                self._steps.notes.append(TimedEvent(Phase.TRANSFER, event.start_s, event.duration_ns, event.waited_ns))

    def _fell_back(self, event: events.FallbackEvent) -> None:
        with self._lock:
            self._add(self._fallbacks, (event.operator, event.line), self._step, event.duration_ns, event.nbytes)
            if self._in_step_thread():
                self._steps.notes.append(TimedEvent(Phase.FALLBACK, event.start_s, event.duration_ns))

    def _synced(self, event: events.SyncEvent) -> None:
        self._pending_syncs.append((self._step, event))
        if event.kind is events.SyncKind.STEP and self._steps_here():
            self._steps.notes.append(event)
            self._step += 1
            if self._step > self._next_check:
                self._after_step(event.line)
        elif self._in_step_thread():
            self._steps.notes.append(TimedEvent(Phase.LOOKUP, event.start_s, event.duration_ns, event.waited_ns))

    def _waited_for_replicas(self, event: collectives.ReplicaWaitEvent) -> None:
        if self._in_step_thread():
            self._steps.notes.append(TimedEvent(Phase.WAITING, event.start_s, event.duration_ns))

    def _add(self, totals: dict[Key, _Total], key: Key, step: int, ns: int, nbytes: int = 0) -> None:
        total = totals.get(key)
        if total is None:
            total = totals[key] = _Total()
        total.add(ns, nbytes, step)

    def _steps_here(self) -> bool:
        """Whether this thread's steps are recorded: it was the first thread to step, or the first since that one ended."""
        this_thread = threading.get_ident()
        if self._step_thread != this_thread:
            if self._step_thread is not None and any(thread.ident == self._step_thread for thread in threading.enumerate()):
                return False
            self._step_thread = self.sampler.thread = this_thread
        return True

    def _after_step(self, line: str | None) -> None:
        """Check memory, and whether programs still change, after a step that compiled and after the steps that the monitor asks for."""
        changing = self._last_compile >= WARM_UP and self._step - self._last_compile <= _QUIET_STEPS
        self._capture_lines(changing)
        start_s, start_ns = time.time(), time.perf_counter_ns()
        if self._memory.after_step(self._step):
            self._timeline.note_own_work(start_s, time.perf_counter_ns() - start_ns, line)
            self._steps.notes.append(Restart(time.time()))  # that time does not count as the step's
        last_changing = self._last_compile + _QUIET_STEPS
        self._next_check = min(self._memory.next_step - 1, last_changing) if changing else self._memory.next_step - 1

    def _capture_lines(self, capture: bool) -> None:
        """Let each operation keep its own line while programs change, to tell where they differ; this costs time."""
        if capture is not self._capturing_lines:
            self._capturing_lines = capture
            graph.capture_lines(capture)

    def _accumulate(self) -> None:
        """Add up the events that were only noted while the program ran."""
        self._timeline.add_samples(self.sampler.samples.copy())  # a copy, since the next line empties it
        self._steps.accumulate(self.sampler.samples)
        while self._pending_syncs:
            step, event = self._pending_syncs.popleft()
            cause = None if event.cause is None else event.cause.value
            self._add(self._syncs, (event.line, event.kind.value, cause), step, event.duration_ns)

    def replica(self, finished: bool) -> Replica:
        """Give the run report of this process up to now."""
        # Outside the lock: else events of the user's threads would wait for the garbage collector.
        if finished:
            self._memory.take_snapshot()
        memory = self._memory.memory()
        self._memory_over_time.append((time.time(), sum(device.in_use for device in memory.devices)))
        memory = replace(memory, over_time=list(self._memory_over_time))
        with self._lock:
            self._accumulate()
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
            totals = self._steps.measured()
            phases_ms, device_ms = totals.phases_ms(), totals.device_ns * 1e-6
            replica = Replica(
                ordinal=job.topology().process_index,
                pid=os.getpid(),
                host=platform.node(),
                hardware=process.client().devices[0].device_kind,
                started_s=self.started_s,
                seconds=max(time.time() - self.started_s, 0.0),  # the clock may have been set back
                finished=finished,
                steps=self._steps.count,
                verdict=bottleneck_of(phases_ms, device_ms),
                phases_ms=phases_ms,
                device_ms=device_ms,
                measured_steps=totals.steps,
                timeline=self._steps.timeline(),
                compiles=list(self._compiles),
                syncs=syncs,
                fallbacks=fallbacks,
                transfers=transfers,
                memory=memory,
                hot_lines=totals.hot_lines(),
                spans=self._timeline.spans(self.sampler.thread),
                background=_since(self._background_before, _background()),
            )
        problems = find_problems(replica, waits)
        return replace(replica, findings=with_excerpts([*problems, *([self._memory.finding] if self._memory.finding else [])]))


def _background() -> Background:
    """All of this process's so far."""
    time_spent = metrics.metric("BackgroundCompileTime")
    ms = 0.0 if time_spent is None else time_spent.accumulator * 1e-6
    return Background(metrics.counter("BackgroundCompile"), ms, metrics.counter("ExecuteByOperation"))


def _since(before: Background, now: Background) -> Background:
    """What was added; all of it if the user has restarted the counters."""
    added = Background(now.compiles - before.compiles, now.ms - before.ms, now.by_operation - before.by_operation)
    return now if min(added.compiles, added.ms, added.by_operation) < 0 else added


def _costliest(totals: dict[Key, _Total]) -> list[tuple[Key, _Total]]:
    return sorted(totals.items(), key=lambda item: -item[1].ns)
