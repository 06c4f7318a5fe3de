"""One line for each thing that keeps steps from being fast, as soon as it shows."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from xla_debug import outputs
from xla_debug.core import abi

PREFIX = "pt-xla-profiler: "
_PER_STEP = 0.5
_WARM_UP = 10
"""Steps after which compilations are no longer expected."""
_COMPILE_S = 300
_EXECUTE_S = 30
Event = abi.CompileEvent | abi.ExecuteEvent | abi.TransferEvent | abi.FallbackEvent | abi.SyncEvent
_SCALAR_READ = "aten::_local_scalar_dense"


class Health:
    """Looks after each step; says what is wrong when it first is, and again when its number has doubled."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._steps = self._compiles = self._reads = 0
        self._compile_s = self._execute_s = 0.0
        self._fallbacks: dict[str, int] = {}
        self._said: dict[str, float] = {}

    def start(self) -> None:
        """Listen from now on."""
        abi.subscribe(self.note, abi.CompileEvent, abi.ExecuteEvent, abi.TransferEvent, abi.FallbackEvent, abi.SyncEvent)

    def note(self, event: Event) -> None:
        """Count an event; say what is wrong if it ends a step."""
        with self._lock:
            seconds = event.duration_ns * 1e-9
            if isinstance(event, abi.CompileEvent):
                self._compiles += 1
                self._compile_s = max(self._compile_s, seconds)
            elif isinstance(event, abi.ExecuteEvent):
                self._execute_s = max(self._execute_s, seconds)
            elif isinstance(event, abi.TransferEvent):
                self._reads += event.direction is abi.Direction.FROM_DEVICE
            elif isinstance(event, abi.FallbackEvent):
                if event.operator != _SCALAR_READ:
                    self._fallbacks[event.operator] = self._fallbacks.get(event.operator, 0) + 1
            elif isinstance(event, abi.SyncEvent) and event.kind is abi.SyncKind.STEP:
                self._steps += 1
                lines = [text for subject, number, text in self._wrong() if self._news(subject, number)]
                if lines:
                    outputs.append(outputs.place(self._target), "".join(f"{PREFIX}{line}\n" for line in lines))

    def _news(self, subject: str, number: float) -> bool:
        if number < 2 * self._said.get(subject, 0.0):
            return False
        self._said[subject] = number
        return True

    def _wrong(self) -> Iterator[tuple[str, float, str]]:
        """Yield each problem: its subject, a number, and the text."""
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
