"""Adds up what the core announces while a program runs, step by step; `replica` gives it all as of now."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from xla_debug.account.differences import KnownPrograms
from xla_debug.account.findings import WARM_UP, find_problems
from xla_debug.account.memory import Watcher
from xla_debug.account.sampler import Sampler
from xla_debug.account.schema import Compile, Fallback, Live, Phase, Replica, Sync, Transfer
from xla_debug.account.steps import Restart, Steps, Told
from xla_debug.account.verdict import verdict_of
from xla_debug.core import abi, nbytes_at

_OVER_TIME = 512
_LONGEST_TEXT = 200_000
_MOST_COMPILES = 1_000
_QUIET_STEPS = 16
"""Steps without a compilation after which operations no longer keep their own lines."""

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


class Collector:
    """One for a process. Subscribers run in the thread where things happen; `replica` may be asked for from any."""

    def __init__(self) -> None:
        self.started_s = time.time()
        self.sampler = Sampler()
        self._known = KnownPrograms()
        self._watcher = Watcher()
        self._lock = threading.Lock()
        self._steps = Steps(self.started_s)
        self._stepping: int | None = None
        self._number = 0  # of the step that is under way
        self._due = self._compiled_in = -1
        self._compiles: list[Compile] = []
        self._syncs_in: deque[tuple[int, abi.SyncEvent]] = deque()
        self._syncs: dict[tuple[str | None, str, str | None], _Total] = {}
        self._fallbacks: dict[tuple[str, str | None], _Total] = {}
        self._transfers: dict[tuple[str, str | None], _Total] = {}
        self._waited: dict[str | None, _Total] = {}
        self._memory_over_time: deque[tuple[float, int]] = deque(maxlen=_OVER_TIME)
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
        return not (self._number or self._compiles or self._transfers or self._syncs or self._syncs_in)

    def live(self) -> list[Live]:
        """The buffers on the devices when they were fullest, now included; the largest first."""
        self._watcher.look()
        return self._watcher.live

    def _here(self) -> bool:
        return threading.get_ident() == self.sampler.thread

    def _compiled(self, event: abi.CompileEvent) -> None:
        difference = self._known.explain(event)
        text = abi.graph_text(event.graph) if event.num_nodes < 2_000 else ""
        with self._lock:
            if self._here():
                self._steps.notes.append(Told(Phase.COMPILE, event.start_s, event.duration_ns))
                self._compiled_in = self._due = self._number
            if len(self._compiles) < _MOST_COMPILES:
                self._compiles.append(
                    Compile(
                        start_s=event.start_s,
                        ms=event.duration_ns * 1e-6,
                        step=self._number,
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
                        donated_bytes=sum(nbytes_at(event.graph, slot) for slot in event.donated),
                    )
                )

    def _executed(self, event: abi.ExecuteEvent) -> None:
        self._steps.notes.append(event)
        if event.blocked_ns and self._here():
            self._steps.notes.append(Told(Phase.WAITING, event.start_s, event.blocked_ns))

    def _moved(self, event: abi.TransferEvent) -> None:
        self._watcher.origins.uploaded(event)
        with self._lock:
            own = event.duration_ns - event.waited_ns
            self._add(self._transfers, (event.direction.value, event.line), self._number, own, event.nbytes)
            if event.direction is abi.Direction.FROM_DEVICE:
                self._add(self._waited, event.line, self._number, event.waited_ns)
            if self._here():
                self._steps.notes.append(Told(Phase.TRANSFER, event.start_s, event.duration_ns, event.waited_ns))

    def _fell_back(self, event: abi.FallbackEvent) -> None:
        with self._lock:
            self._add(self._fallbacks, (event.operator, event.line), self._number, event.duration_ns, event.nbytes)
            if self._here():
                self._steps.notes.append(Told(Phase.FALLBACK, event.start_s, event.duration_ns))

    def _synced(self, event: abi.SyncEvent) -> None:
        self._syncs_in.append((self._number, event))
        if event.kind is abi.SyncKind.STEP and self._follows():
            self._steps.notes.append(event)
            self._number += 1
            if self._number > self._due:
                self._attend()
        elif self._here():
            self._steps.notes.append(Told(Phase.LOOKUP, event.start_s, event.duration_ns, event.waited_ns))

    def _add(self, totals: dict[Key, _Total], key: Key, step: int, ns: int, nbytes: int = 0) -> None:
        total = totals.get(key)
        if total is None:
            total = totals[key] = _Total()
        total.add(ns, nbytes, step)

    def _follows(self) -> bool:
        """Whether steps of this thread are those that are told: it was the first to step, or the first since that one has ended."""
        here = threading.get_ident()
        if self._stepping != here:
            if self._stepping is not None and any(thread.ident == self._stepping for thread in threading.enumerate()):
                return False
            self._stepping = self.sampler.thread = here
        return True

    def _attend(self) -> None:
        """After a step that compiled, or that something was to be done after."""
        changing = self._compiled_in >= WARM_UP and self._number - self._compiled_in <= _QUIET_STEPS
        self._keep_lines(changing)
        if self._watcher.after_step(self._number):
            self._steps.notes.append(Restart(time.time()))  # the step need not pay for that
        last_changing = self._compiled_in + _QUIET_STEPS
        self._due = min(self._watcher.next - 1, last_changing) if changing else self._watcher.next - 1

    def _keep_lines(self, exact: bool) -> None:
        """Whether each recorded operation keeps its own line, which costs: while programs change, to say where they do."""
        if exact is not self._exact:
            self._exact = exact
            abi.capture_lines(exact)

    def _settle(self) -> None:
        """Add up what was only noted while the program ran."""
        self._steps.settle(self.sampler.samples)
        while self._syncs_in:
            step, event = self._syncs_in.popleft()
            cause = None if event.cause is None else event.cause.value
            self._add(self._syncs, (event.line, event.kind.value, cause), step, event.duration_ns)

    def replica(self, finished: bool) -> Replica:
        """Everything so far."""
        if finished:
            self._watcher.look()
        memory = self._watcher.memory()
        self._memory_over_time.append((time.time(), sum(device.in_use for device in memory.devices)))
        memory = replace(memory, over_time=list(self._memory_over_time))
        with self._lock:
            self._settle()
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
            spent = self._steps.measured()
            phases_ms, device_ms = spent.phases_ms(), spent.device_ns * 1e-6
            found = Replica(
                ordinal=abi.topology().process_index,
                pid=os.getpid(),
                host=platform.node(),
                hardware=abi.client().devices[0].device_kind,
                started_s=self.started_s,
                seconds=time.time() - self.started_s,
                finished=finished,
                steps=self._steps.settled,
                verdict=verdict_of(phases_ms, device_ms),
                phases_ms=phases_ms,
                device_ms=device_ms,
                measured_steps=spent.steps,
                timeline=self._steps.timeline(),
                compiles=list(self._compiles),
                syncs=syncs,
                fallbacks=fallbacks,
                transfers=transfers,
                memory=memory,
                hot_lines=spent.hot_lines(),
            )
        problems = find_problems(found, waits)
        return replace(found, findings=[*problems, *([self._watcher.finding] if self._watcher.finding else [])])


def _costliest(totals: dict[Key, _Total]) -> list[tuple[Key, _Total]]:
    return sorted(totals.items(), key=lambda item: -item[1].ns)
