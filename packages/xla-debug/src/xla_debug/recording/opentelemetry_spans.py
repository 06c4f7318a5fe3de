"""Make OpenTelemetry spans of compilations, executions, copies, syncs, fallbacks and waits for replicas, each with the user's line.

A span is a child of the user's current span. Without one it belongs to a span of its step, from the end of one step sync to the end of
the next: so each step of a device is one trace, not each event.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from xla_debug import settings
from xla_debug._version import __version__
from xla_debug.core import collectives, events, job
from xla_debug.recording import process_end
from xla_debug.recording.listener import Listener
from xla_debug.recording.opentelemetry_environment import provider_of_environment
from xla_debug.recording.program_differences import KnownPrograms

_NAME = "xla-debug"
_KEPT_STEPS = 64
"""Steps of a device that are kept for late events: the event of an execution comes when it is over."""

Event = (
    events.CompileEvent
    | events.ExecuteEvent
    | events.TransferEvent
    | events.SyncEvent
    | events.FallbackEvent
    | collectives.ReplicaWaitEvent
)
_Value = str | int


@dataclass(slots=True)
class _Step:
    """A step of a device. span: made when an event needs it."""

    number: int
    start_ns: int
    end_ns: int | None = None
    span: trace.Span | None = None


class Spans(Listener):
    """Makes spans of events from `start` to `stop`. provider: gives at each event where the span goes; None drops it."""

    def __init__(self, provider: Callable[[], trace.TracerProvider | None]) -> None:
        super().__init__()
        self._provider = provider
        self._cached_tracer: tuple[trace.TracerProvider, trace.Tracer] | None = None
        self._known = KnownPrograms()
        self._lock = threading.RLock()  # reentrant, since a span processor of the user's may use a device
        self._start_ns = 0
        self._steps: dict[str, deque[_Step]] = {}
        self._busy_until_ns: dict[str, int] = {}

    @property
    def made_some(self) -> bool:
        """Whether a span has been made yet."""
        return self._cached_tracer is not None

    def start(self) -> None:
        """Subscribe to the events."""
        self._start_ns = time.time_ns()
        super().start()

    def stop(self) -> None:
        """Unsubscribe, and end the spans of the current steps."""
        super().stop()
        with self._lock:
            for steps in self._steps.values():
                self._end(steps[-1], time.time_ns())

    def _compiled(self, event: events.CompileEvent) -> None:
        difference = self._known.explain(event)
        attributes = _program(event) | {"xla.compile.change": difference.change.value, "xla.compile.donated_inputs": len(event.donated)}
        self._add("xla.compile", event, attributes | ({"xla.compile.reason": difference.text} if difference.text else {}))

    def _executed(self, event: events.ExecuteEvent) -> None:
        start_ns, end_ns = _interval(event)
        with self._lock:
            # A program waits for earlier programs: that is not its own time.
            until_ns = self._busy_until_ns.get(event.device, 0)
            busy_ns = max(end_ns - max(start_ns, until_ns), 0)
            self._busy_until_ns[event.device] = max(end_ns, until_ns)
        self._add("xla.execute", event, _program(event) | {"xla.device_ns": busy_ns})

    def _moved(self, event: events.TransferEvent) -> None:
        attributes = {"xla.direction": event.direction.value, "xla.bytes": event.nbytes, "xla.waited_ns": event.waited_ns}
        self._add("xla.transfer", event, attributes)

    def _fell_back(self, event: events.FallbackEvent) -> None:
        self._add("xla.fallback", event, {"xla.operator": event.operator, "xla.bytes": event.nbytes})

    def _synced(self, event: events.SyncEvent) -> None:
        attributes: dict[str, _Value] = {"xla.sync.kind": event.kind.value, "xla.waited_ns": event.waited_ns}
        self._add("xla.sync", event, attributes | _cause(event.cause))
        if event.kind is events.SyncKind.STEP:
            _, end_ns = _interval(event)
            with self._lock:
                steps = self._steps_of(event.device)
                self._end(steps[-1], end_ns)
                steps.append(_Step(steps[-1].number + 1, end_ns))

    def _waited_for_replicas(self, event: collectives.ReplicaWaitEvent) -> None:
        self._add("xla.replica_wait", event, {})

    def _add(self, name: str, event: Event, attributes: Mapping[str, _Value]) -> None:
        tracer = self._tracer()
        if tracer is None:
            return
        start_ns, end_ns = _interval(event)
        step = self._step_of(event.device, start_ns)
        common: dict[str, _Value] = {"xla.device": event.device, "xla.step": step.number, **_line(event.line), **_replica()}
        has_parent = trace.get_current_span().get_span_context().is_valid
        context = None if has_parent else self._context_of(tracer, event.device, step)
        tracer.start_span(name, context, attributes={**common, **attributes}, start_time=start_ns).end(end_ns)

    def _tracer(self) -> trace.Tracer | None:
        provider = self._provider()
        if provider is None:
            return None
        cached = self._cached_tracer
        if cached is None or cached[0] is not provider:
            cached = self._cached_tracer = provider, provider.get_tracer(_NAME, __version__)
        return cached[1]

    def _steps_of(self, device: str) -> deque[_Step]:
        if device not in self._steps:
            self._steps[device] = deque([_Step(0, self._start_ns)], maxlen=_KEPT_STEPS)
        return self._steps[device]

    def _step_of(self, device: str, start_ns: int) -> _Step:
        """Find the step of a device in which an event began."""
        with self._lock:
            steps = self._steps_of(device)
            return next((step for step in reversed(steps) if step.start_ns <= start_ns), steps[0])

    def _context_of(self, tracer: trace.Tracer, device: str, step: _Step) -> otel_context.Context:
        """Give the context of a step's span; makes the span if there is none yet."""
        with self._lock:
            if step.span is None:
                attributes = {"xla.device": device, "xla.step": step.number, **_replica()}
                step.span = tracer.start_span("xla.step", otel_context.Context(), attributes=attributes, start_time=step.start_ns)
                if step.end_ns is not None:
                    step.span.end(step.end_ns)
            return trace.set_span_in_context(step.span)

    def _end(self, step: _Step, end_ns: int) -> None:
        step.end_ns = end_ns
        if step.span is not None:
            step.span.end(end_ns)


def user_provider() -> trace.TracerProvider | None:
    """The provider that the program has set; None before it does."""
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


class _SpansOfEnvironment:
    """Makes spans until the process ends: to the provider that the program sets, else to exporters that the environment names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = False
        self._own: TracerProvider | None = None
        self._missing: str | None = None
        self._spans = Spans(self._provider)

    def start(self) -> None:
        """Make spans from now until the process ends."""
        self._spans.start()
        process_end.register(self._finish)

    def _provider(self) -> trace.TracerProvider | None:
        return user_provider() or self._provider_of_environment()

    def _provider_of_environment(self) -> TracerProvider | None:
        # Made only when an event needs it: by then most programs with their own provider have set it.
        with self._lock:
            if not self._asked:
                self._asked = True
                try:
                    self._own = provider_of_environment()
                except ImportError as error:  # the program may still set a provider
                    self._missing = str(error)
            return self._own

    def _finish(self) -> None:
        self._spans.stop()
        if self._own is not None:
            self._own.shutdown()
        if self._missing is not None and settings.OPENTELEMETRY.get() and not self._spans.made_some:
            print(f"xla-debug: no spans were made, since the program set no TracerProvider, and {self._missing}", file=sys.stderr)


@cache
def start_spans() -> None:
    """Make spans from now on; once for a process."""
    _SpansOfEnvironment().start()


def _interval(event: Event) -> tuple[int, int]:
    """The start and end of an event in nanoseconds since the epoch."""
    start_ns = round(event.start_s * 1e9)
    return start_ns, start_ns + event.duration_ns


def _program(event: events.CompileEvent | events.ExecuteEvent) -> dict[str, _Value]:
    name_attribute: dict[str, _Value] = {} if event.name is None else {"xla.program.name": event.name}
    return {
        "xla.program.hash": event.graph_hash,
        "xla.program.operations": event.num_nodes,
        "xla.program.inputs": event.num_inputs,
        "xla.program.results": event.num_outputs,
        **_cause(event.cause),
        **name_attribute,
    }


def _cause(cause: events.Cause | None) -> dict[str, _Value]:
    return {} if cause is None else {"xla.cause": cause.value}


def _line(line: str | None) -> dict[str, _Value]:
    if line is None:
        return {}
    path, _, line_number = line.rpartition(":")
    return {"code.file.path": path, "code.line.number": int(line_number)}


def _replica() -> dict[str, _Value]:
    topology = job.topology()
    return {"xla.replica": topology.process_index} if topology.process_count > 1 else {}
