"""Give users the counters and metrics of the runtime: by name, and as the text of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xla_debug.core import budget
from xla_debug.core import metrics as metrics_abi
from xla_debug.settings import METRICS_PERCENTILES

_SHORT_COUNTERS = ("CachedCompile", "MarkStep", "DynamoSyncInputExecuteTime")
_SHORT_METRICS = ("CompileTime", "ExecuteTime", "ExecuteReplicatedTime", "TransferToDeviceTime", "TransferFromDeviceTime")
_READ = "aten::_local_scalar_dense"  # reading a scalar is counted like a fallback, but no lowering is missing

_NS_PER_S = 1_000_000_000
# Units of a duration above microseconds: name, nanoseconds, digits.
_PARTS = (("d", 86_400 * _NS_PER_S, 2), ("h", 3600 * _NS_PER_S, 2), ("m", 60 * _NS_PER_S, 2), ("s", _NS_PER_S, 2), ("ms", 1_000_000, 3))
_BYTES = ("B", "KB", "MB", "GB", "TB", "PB")


@budget()
def clear_counters() -> None:
    """Restart every counter at zero."""
    metrics_abi.clear(metrics=False)


@budget()
def clear_metrics() -> None:
    """Forget all metrics."""
    metrics_abi.clear(counters=False)


def duration_text(nanoseconds: float) -> str:
    """Write a duration unit by unit, each truncated: 12 345 678 ns is `012ms345.678us`."""
    rest = int(nanoseconds)
    text = ""
    for name, size, width in _PARTS:
        count, rest = divmod(rest, size)
        if count or text:
            text += f"{count:0{width}}{name}"
    return f"{text}{rest // 1000:03}.{rest % 1000:03}us"


def bytes_text(nbytes: float) -> str:
    """Write bytes in the largest unit of which there is at least one: 402 432 is `393.00KB`."""
    unit = 0
    while nbytes >= 1024 and unit < len(_BYTES) - 1:
        nbytes /= 1024
        unit += 1
    return f"{nbytes:.2f}{_BYTES[unit]}"


def _value_text(value: float, unit: metrics_abi.Unit) -> str:
    if unit is metrics_abi.Unit.DURATION_NS:
        return duration_text(value)
    return bytes_text(value) if unit is metrics_abi.Unit.BYTES else f"{value:.2f}"


def metric_text(metric: metrics_abi.MetricSnapshot, percentiles: Sequence[float]) -> str:
    """Write the lines of one metric. percentiles: fractions from 0 to 1, of the samples that it kept."""
    lines = [
        f"Metric: {metric.name}",
        f"  TotalSamples: {metric.total_samples}",
        f"  Accumulator: {_value_text(metric.accumulator, metric.unit)}",
    ]
    values = [value for _, value in metric.samples]
    seconds = metric.samples[-1][0] - metric.samples[0][0]
    if seconds > 0:
        lines.append(f"  ValueRate: {_value_text(sum(values) / seconds, metric.unit)} / second")
        lines.append(f"  Rate: {len(values) / seconds:g} / second")
    values.sort()
    last = len(values) - 1
    shown = [f"{100 * part:g}%={_value_text(values[min(int(part * len(values)), last)], metric.unit)}" for part in percentiles]
    lines.append(f"  Percentiles: {'; '.join(shown)}")
    return "\n".join(lines) + "\n"


def counter_text(name: str, value: int) -> str:
    """Write the lines of one counter."""
    return f"Counter: {name}\n  Value: {value}\n"


def report_text(snapshot: metrics_abi.Snapshot, metric_names: Iterable[str], counter_names: Iterable[str]) -> str:
    """Write the report of the named metrics and counters, in this order, as far as they are active."""
    percentiles = METRICS_PERCENTILES.get()
    metrics = [metric_text(snapshot.metrics[name], percentiles) for name in metric_names if name in snapshot.metrics]
    counters = [counter_text(name, snapshot.counters[name]) for name in counter_names if name in snapshot.counters]
    return "".join(metrics + counters)


@budget()
def metrics_report() -> str:
    """Report all active metrics, then all active counters, each by name.

    Raises ValueError if XLA_METRICS_PERCENTILES holds no list of fractions.
    """
    snapshot = metrics_abi.snapshot()
    return report_text(snapshot, snapshot.metrics, snapshot.counters)


@budget()
def short_metrics_report(counter_names: list[str] | None = None, metric_names: list[str] | None = None) -> str:
    """Report the listed metrics and counters (None: the most telling ones), in list order, then the counter of each operator on the CPU.

    Raises ValueError if XLA_METRICS_PERCENTILES holds no list of fractions.
    """
    snapshot = metrics_abi.snapshot()
    listed = _SHORT_COUNTERS if counter_names is None else counter_names
    fallbacks = [name for name in snapshot.counters if name.startswith("aten::")]
    return report_text(snapshot, _SHORT_METRICS if metric_names is None else metric_names, dict.fromkeys((*listed, *fallbacks)))


@budget()
def counter_names() -> list[str]:
    """The names of all counters that are not zero."""
    return list(metrics_abi.snapshot().counters)


@budget()
def counter_value(name: str) -> int | None:
    """The value of a counter; None while it is zero."""
    return metrics_abi.counter(name) or None


@budget()
def metric_names() -> list[str]:
    """The names of all metrics with samples."""
    return list(metrics_abi.snapshot().metrics)


@budget()
def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """The data of a metric: the number of samples, their sum, and the newest as (seconds since the epoch, value), oldest first.

    Durations are in nanoseconds. None for a metric without samples.
    """
    metric = metrics_abi.metric(name)
    return None if metric is None else (metric.total_samples, metric.accumulator, list(metric.samples))


@budget()
def clear_all() -> None:
    """Restart all counters at zero and forget all metrics."""
    metrics_abi.clear()


@budget()
def executed_fallback_ops() -> list[str]:
    """The full names of the operators that ran on the CPU for want of a lowering; reading a scalar does not count."""
    return [name for name in metrics_abi.snapshot().counters if "::" in name and not name.startswith("xla::") and name != _READ]
