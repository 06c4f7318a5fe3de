"""Counters, metrics and typed events of the core. Other modules name and render them.

Counters and metrics are read as a `Snapshot`; events go to subscribers at once, in the thread where they happen. A subscriber that raises
is named in a warning and unsubscribed; only an XlaError propagates to the operation that caused the event, so that a subscriber can stop a
run on purpose.
"""

from __future__ import annotations

import enum
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from xla_core.base import config
from xla_core.base.errors import XlaError, described

Collector = Callable[[], Mapping[str, int]]


class Unit(enum.Enum):
    """The unit of a metric's values."""

    DURATION_NS = "ns"
    BYTES = "bytes"
    NUMBER = "number"


class Direction(enum.Enum):
    """Which way a transfer went."""

    TO_DEVICE = "to_device"
    FROM_DEVICE = "from_device"


class SyncKind(enum.Enum):
    """STEP: a sync ran everything live. READ: a value read ran only the operations that the values need."""

    STEP = "step"
    READ = "read"


class Cause(enum.Enum):
    """The cause of a compilation or an execution."""

    USER_SYNC = "user_sync"
    LOADER = "loader"
    STEP_TRACE = "step_trace"
    COMPILE_REGION = "compile_region"
    CLEAR_PENDING = "clear_pending"  # on entering a region
    DYNAMO_INPUTS = "dynamo_inputs"
    DYNAMO_COMPILE = "dynamo_compile"
    DYNAMO_EXECUTE = "dynamo_execute"
    VALUE_READ = "value_read"
    CAPTURED = "captured"  # a captured call (torch_xla.compile)
    PENDING_LIMIT = "pending_limit"  # not the user: too much was pending


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that took time on a device.

    device: text such as `xla:0`. start_s: seconds since the epoch. line: the user's `file:line` that asked for it; None if a thread of ours
    did.
    """

    device: str
    start_s: float
    duration_ns: int
    line: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEvent(Event):
    """Base class of CompileEvent and ExecuteEvent: the graph, its size, and who requested it. name: of the `torch_xla.compile` region."""

    graph_hash: str
    num_nodes: int
    num_inputs: int
    num_outputs: int
    cause: Cause | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileEvent(GraphEvent):
    """A program was compiled.

    graph: the `Graph`. constants: the Python numbers of this call that were not inputs from the start, as `Graph.numbers` lists them;
    a number that had another value before is an input from now on. donated: slots of the inputs whose memory its results take over.
    """

    graph: Any = field(default=None, repr=False)
    constants: tuple[float, ...] = ()
    donated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteEvent(GraphEvent):
    """A program was run. blocked_ns: how long it blocked the caller, on a device that runs programs at once."""

    blocked_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferEvent(Event):
    """`nbytes` moved between host and device. waited_ns: the part of the duration until the device had computed them.

    buffer: the buffer on the device.
    """

    direction: Direction
    nbytes: int
    waited_ns: int = 0
    buffer: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncEvent(Event):
    """Pending operations were launched; the duration ends when the sync returns. waited_ns: the part of it due to `wait=True`."""

    kind: SyncKind
    cause: Cause | None = None
    waited_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackEvent(Event):
    """`operator` (full name, with overload) ran on the CPU. nbytes: of its operands and results, which were transferred."""

    operator: str
    nbytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWaitEvent(Event):
    """A thread waited for the other replicas before it launched a program that they all run."""


EVENT_TYPES: tuple[type[Event], ...] = (CompileEvent, ExecuteEvent, TransferEvent, SyncEvent, FallbackEvent, ReplicaWaitEvent)
Subscriber = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class MetricSnapshot:
    """One metric: totals over all samples ever added, and the newest `(seconds since the epoch, value)`, oldest first."""

    name: str
    unit: Unit
    total_samples: int
    accumulator: float
    samples: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Active counters (not zero) and active metrics (with samples), each sorted by name."""

    counters: Mapping[str, int]
    metrics: Mapping[str, MetricSnapshot]


@dataclass(slots=True)
class _Metric:
    unit: Unit
    samples: deque[tuple[float, float]]
    total_samples: int = 0
    accumulator: float = 0.0


def _frozen(name: str, metric: _Metric) -> MetricSnapshot:
    return MetricSnapshot(name, metric.unit, metric.total_samples, metric.accumulator, tuple(metric.samples))


@dataclass(slots=True, eq=False)
class _Collecting:
    collect: Collector
    names: frozenset[str] | None
    baseline: Mapping[str, int] = field(default_factory=dict)


class Registry:
    """Counters, metrics and subscribers of one process; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, int] = {}
        self._metrics: dict[str, _Metric] = {}
        self._collecting: tuple[_Collecting, ...] = ()
        self._subscribers: dict[type[Event], tuple[Subscriber, ...]] = {}

    def counter_add(self, name: str, n: int = 1) -> None:
        """Add `n` to a counter."""
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + n

    def metric_add(self, name: str, value: float, unit: Unit) -> None:
        """Add one sample, stamped with the present time. Raises: ValueError if the metric already has another unit."""
        self.metrics_add((name, value, unit))

    def metrics_add(self, *samples: tuple[str, float, Unit]) -> None:
        """`metric_add` of several samples of one moment: `(name, value, unit)` each."""
        now = time.time()
        with self._lock:
            for name, value, unit in samples:
                metric = self._metrics.get(name)
                if metric is None:
                    metric = self._metrics[name] = _Metric(unit, deque(maxlen=config.METRICS_SAMPLES.get()))
                elif metric.unit is not unit:
                    raise ValueError(f"metric {name} holds {metric.unit.name}, got a sample of {unit.name}")
                metric.samples.append((now, value))
                metric.total_samples += 1
                metric.accumulator += value

    def register_collector(self, collect: Collector, names: frozenset[str] | None = None) -> Callable[[], None]:
        """Call `collect` for counters at each snapshot; its numbers may only grow. Returns a function that removes it.

        names: all names that it may return, if they are known.
        """
        entry = _Collecting(collect, names)
        with self._lock:
            self._collecting = (*self._collecting, entry)

        def unregister() -> None:
            with self._lock:
                self._collecting = tuple(other for other in self._collecting if other is not entry)

        return unregister

    def counter(self, name: str) -> int:
        """One counter now, 0 if nothing was counted: much cheaper than a snapshot."""
        matching = [entry for entry in self._collecting if entry.names is None or name in entry.names]
        collected = sum(entry.collect().get(name, 0) - entry.baseline.get(name, 0) for entry in matching)
        with self._lock:
            return self._counters.get(name, 0) + collected

    def snapshot(self) -> Snapshot:
        """Everything active now."""
        collected = [(entry, entry.collect()) for entry in self._collecting]
        with self._lock:
            counters = dict(self._counters)
            for entry, values in collected:
                for name, value in values.items():
                    counters[name] = counters.get(name, 0) + value - entry.baseline.get(name, 0)
            metrics = {name: _frozen(name, metric) for name, metric in sorted(self._metrics.items())}
        active = {name: value for name, value in sorted(counters.items()) if value}
        return Snapshot(MappingProxyType(active), MappingProxyType(metrics))

    def metric(self, name: str) -> MetricSnapshot | None:
        """One metric now, None if it has no samples: much cheaper than a snapshot."""
        with self._lock:
            recorded = self._metrics.get(name)
            return None if recorded is None else _frozen(name, recorded)

    def clear_counters(self) -> None:
        """Restart every counter at zero; collectors count from their present values on."""
        collected = [(entry, dict(entry.collect())) for entry in self._collecting]
        with self._lock:
            self._counters.clear()
            for entry, values in collected:
                entry.baseline = values

    def clear_metrics(self) -> None:
        """Drop all metrics; a new metric keeps as many samples as XLA_METRICS_SAMPLES says then."""
        with self._lock:
            self._metrics.clear()

    def clear(self, *, counters: bool = True, metrics: bool = True) -> None:
        """Reset all counters, all metrics, or both."""
        if counters:
            self.clear_counters()
        if metrics:
            self.clear_metrics()

    def subscribe(self, fn: Subscriber, *event_types: type[Event]) -> Callable[[], None]:
        """Call `fn(event)` for each event of these types (without types: for all). Returns a function that ends it."""
        chosen = tuple(dict.fromkeys(event_types)) or EVENT_TYPES
        for event_type in chosen:
            if event_type not in EVENT_TYPES:
                raise ValueError(f"no such event: {event_type!r}; choose from {', '.join(type_.__name__ for type_ in EVENT_TYPES)}")

        def call(event: Event) -> None:
            try:
                fn(event)
            except XlaError:
                raise
            except Exception as error:  # the user's step is not the listener's to end
                unsubscribe()
                warnings.warn(
                    f"a listener to xla's events, {described(fn)}, raised {type(error).__name__}: {error}. It is told of no more events",
                    RuntimeWarning,
                    stacklevel=2,
                )

        with self._lock:
            for event_type in chosen:
                self._subscribers[event_type] = (*self._subscribers.get(event_type, ()), call)

        def unsubscribe() -> None:
            with self._lock:
                for event_type in chosen:
                    self._subscribers[event_type] = tuple(other for other in self._subscribers[event_type] if other is not call)

        return unsubscribe

    def has_subscribers(self, event_type: type[Event]) -> bool:
        """Whether anybody subscribes to this type, so that building an event is worth it."""
        return bool(self._subscribers.get(event_type))

    def listened(self) -> bool:
        """Whether there is a subscriber to any type of event."""
        return any(self._subscribers.values())

    def emit(self, event: Event) -> None:
        """Hand `event` to the subscribers of its type, in the order of their subscription. Raises XlaError if one of them does."""
        for subscriber in self._subscribers.get(type(event), ()):
            subscriber(event)


_PROCESS = Registry()
counter_add = _PROCESS.counter_add
metric_add = _PROCESS.metric_add
metrics_add = _PROCESS.metrics_add
register_collector = _PROCESS.register_collector
counter = _PROCESS.counter
snapshot = _PROCESS.snapshot
metric = _PROCESS.metric
clear = _PROCESS.clear
subscribe = _PROCESS.subscribe
has_subscribers = _PROCESS.has_subscribers
listened = _PROCESS.listened
emit = _PROCESS.emit
