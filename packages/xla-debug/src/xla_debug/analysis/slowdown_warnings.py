"""Warn, in one line each, of problems that slow steps down as soon as they show."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from xla_debug import replica_output
from xla_debug.core import events

PREFIX = "pt-xla-profiler: "
_PER_STEP = 0.5
_WARM_UP = 10
"""Steps after which compilations are no longer expected."""
_COMPILE_S = 300
_EXECUTE_S = 30
Event = events.CompileEvent | events.ExecuteEvent | events.TransferEvent | events.FallbackEvent | events.SyncEvent
_SCALAR_READ = "aten::_local_scalar_dense"


class SlowdownWarnings:
    """Checks for problems after each step; warns when one first shows, and again when its measure has doubled."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._steps = self._compiles = self._reads = 0
        self._compile_s = self._execute_s = 0.0
        self._fallbacks: dict[str, int] = {}
        self._reported: dict[str, float] = {}

    def start(self) -> None:
        """Listen from now on."""
        events.subscribe(self.note, events.CompileEvent, events.ExecuteEvent, events.TransferEvent, events.FallbackEvent, events.SyncEvent)

    def note(self, event: Event) -> None:
        """Count an event; warn of problems if it ends a step."""
        with self._lock:
            seconds = event.duration_ns * 1e-9
            if isinstance(event, events.CompileEvent):
                self._compiles += 1
                self._compile_s = max(self._compile_s, seconds)
            elif isinstance(event, events.ExecuteEvent):
                self._execute_s = max(self._execute_s, seconds)
            elif isinstance(event, events.TransferEvent):
                self._reads += event.direction is events.Direction.FROM_DEVICE
            elif isinstance(event, events.FallbackEvent):
                if event.operator != _SCALAR_READ:
                    self._fallbacks[event.operator] = self._fallbacks.get(event.operator, 0) + 1
            elif isinstance(event, events.SyncEvent) and event.kind is events.SyncKind.STEP:
                self._steps += 1
                lines = [text for subject, measure, text in self._problems() if self._is_news(subject, measure)]
                if lines:
                    replica_output.append(replica_output.target_of_replica(self._target), "".join(f"{PREFIX}{line}\n" for line in lines))

    def _is_news(self, subject: str, measure: float) -> bool:
        if measure < 2 * self._reported.get(subject, 0.0):
            return False
        self._reported[subject] = measure
        return True

    def _problems(self) -> Iterator[tuple[str, float, str]]:
        """Yield each problem: its subject, its measure, and the text."""
        steps = self._steps
        if steps >= _WARM_UP and self._compiles > _PER_STEP * steps:
            text = f"CompileTime: {self._compiles} compilations in {steps} steps; shapes or Python numbers change from step to step"
            yield "compiles", self._compiles, text
        if self._reads > _PER_STEP * steps:
            text = f"TransferFromDeviceTime: {self._reads} reads in {steps} steps; read values less often, not in each step"
            yield "reads", self._reads, text
        if self._compile_s > _COMPILE_S:
            yield "compile", self._compile_s, f"CompileTime: a compilation took {self._compile_s:.0f} s; record smaller steps"
        if self._execute_s > _EXECUTE_S:
            yield "execute", self._execute_s, f"ExecuteTime: an execution took {self._execute_s:.0f} s; record smaller steps"
        for operator, calls in self._fallbacks.items():
            yield operator, calls, f"{operator} has no lowering: {calls} calls ran on the CPU in {steps} steps"
