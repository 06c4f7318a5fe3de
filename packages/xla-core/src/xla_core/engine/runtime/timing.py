"""Measure executions: a thread waits for each, so that the time is the device's."""

from __future__ import annotations

import atexit
import contextvars
import queue
import threading
import time
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import torch

from xla_core.base import metrics
from xla_core.base.metrics import ExecuteEvent, ReplicaWaitEvent, Unit
from xla_core.engine.runtime.source_location import user_line


@dataclass(slots=True)
class Launched:
    """An execution that was handed to a device, `device` being its index.

    event: fields of its event; empty without subscribers. context: of the thread that launched it, for subscribers; None: the current one.
    """

    device: int
    token: jax.Array
    begin_ns: int
    start_s: float
    metric: str
    event: dict[str, Any]
    context: contextvars.Context | None = None


def measure(launched: Launched, blocked_ns: int) -> None:
    """Record the time of an execution when it is done. blocked_ns: how long its launch took: all of its time if it is done already."""
    if launched.token.is_ready():  # type: ignore[attr-defined]
        if launched.event:
            launched.event["blocked_ns"] = blocked_ns
        _finished(launched)
    else:
        if launched.event:
            launched.context = contextvars.copy_context()
        _waiter().put(launched)


def note_replica_wait(device: torch.device, begin_ns: int) -> None:
    """Tell subscribers that this thread has waited for other replicas since `begin_ns`, a time of `time.perf_counter_ns`."""
    if metrics.has_subscribers(ReplicaWaitEvent):
        waited_ns = time.perf_counter_ns() - begin_ns
        start_s = time.time() - waited_ns * 1e-9
        metrics.emit(ReplicaWaitEvent(device=str(device), start_s=start_s, duration_ns=waited_ns, line=user_line()))


_done_ns: dict[int, int] = {}  # when each device finished its last program


def _finished(launched: Launched) -> None:
    now, begin = time.perf_counter_ns(), launched.begin_ns
    # The time in which a program waits for those before it is not its own.
    metrics.metric_add(launched.metric, now - max(begin, _done_ns.get(launched.device, begin)), Unit.DURATION_NS)
    _done_ns[launched.device] = now
    if launched.event:
        event = ExecuteEvent(**launched.event, start_s=launched.start_s, duration_ns=now - launched.begin_ns)
        if launched.context is None:
            metrics.emit(event)
        else:
            launched.context.run(metrics.emit, event)


@cache
def _waiter() -> queue.SimpleQueue[Launched | None]:
    """The queue of a thread that waits for executions in order, so that each time is the device's and not the queue's."""
    launched: queue.SimpleQueue[Launched | None] = queue.SimpleQueue()

    def run() -> None:
        while (item := launched.get()) is not None:
            try:
                item.token.block_until_ready()
            except RuntimeError:
                metrics.counter_add("ExecuteError")  # the error itself shows where a result is read
                continue
            _finished(item)

    thread = threading.Thread(target=run, name="xla-execution-times", daemon=True)
    thread.start()

    def stop() -> None:
        launched.put(None)
        thread.join()

    atexit.register(stop)
    return launched
