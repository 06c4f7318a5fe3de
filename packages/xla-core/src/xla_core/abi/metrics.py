"""Counters and metrics of this process, to read and to add to, and the buffers that its devices hold now.

A counter is a whole number that only grows, such as `UncachedCompile` or `aten::nonzero` (an operation that ran on the CPU). A metric has
samples: its number, its sum, and the newest with their times.

    >>> from xla_core.abi.metrics import Unit, counter, counter_add, metric_add, snapshot
    >>> counter_add("MyPackageCalls")
    >>> counter("MyPackageCalls")
    1
    >>> metric_add("MyPackageBytes", 512, Unit.BYTES)
    >>> seen = snapshot()
    >>> seen.counters["MyPackageCalls"], seen.metrics["MyPackageBytes"].accumulator
    (1, 512.0)

* `snapshot` is everything that is not zero now, sorted by name, as a `Snapshot` that stays as it is. The names that it has are the names
  that there are.
* `counter` and `metric` ask for one, much cheaper than a snapshot; a metric comes as `MetricSnapshot`.
* `counter_add` and `metric_add` add to one; it need not be announced. A metric keeps the `Unit` of its first sample.
* `live_buffers` lists what is on the devices now, each a `LiveBuffer` with the tensors that keep it there. It asks the garbage
  collector: milliseconds.
* `scope` names what this thread does in a block, as a profiler shows it: no step ends there while operations keep their lines.
* `clear` starts counters, metrics or both again at nothing.

Guarantees: all of it may be called from any thread. Counters that would cost something while operations are recorded are worked
out when they are asked for. Sums are over all samples ever added, also of those that are not kept one by one (`XLA_METRICS_SAMPLES`).
"""

from __future__ import annotations

from xla_core.base.metrics import MetricSnapshot, Snapshot, Unit, clear, counter, counter_add, metric, metric_add, snapshot
from xla_core.engine.runtime.source_location import scope
from xla_core.engine.tensor.live_buffers import LiveBuffer, live_buffers

__all__ = [
    "LiveBuffer",
    "MetricSnapshot",
    "Snapshot",
    "Unit",
    "clear",
    "counter",
    "counter_add",
    "live_buffers",
    "metric",
    "metric_add",
    "scope",
    "snapshot",
]
