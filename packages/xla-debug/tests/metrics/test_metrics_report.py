"""The text of a report to the byte, from snapshots written down by hand."""

from __future__ import annotations

import pytest

from xla_debug.core import abi, metrics
from xla_debug.metrics import metrics_report

SHORT = (0.5, 0.9)


def metric(unit: metrics.Unit, *samples: tuple[float, float], name: str = "CompileTime", before: float = 0.0) -> metrics.MetricSnapshot:
    """A metric that kept these samples; `before`: the sum of one that left its ring."""
    total = len(samples) + (1 if before else 0)
    return metrics.MetricSnapshot(name, unit, total, before + sum(value for _, value in samples), samples)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (369_401_746_001, "06m09s401ms746.001us"),
        (12_345_678, "012ms345.678us"),
        (500, "000.500us"),
        (0, "000.000us"),
        (0.99, "000.000us"),
        (999_999, "999.999us"),
        (1_000_000, "001ms000.000us"),
        (59_999_999_999, "59s999ms999.999us"),
        (60 * 10**9, "01m00s000ms000.000us"),
        (3600 * 10**9, "01h00m00s000ms000.000us"),
        (90_061 * 10**9 + 1, "01d01h01m01s000ms000.001us"),
        (100 * 86_400 * 10**9, "100d00h00m00s000ms000.000us"),
    ],
)
def test_durations_are_truncated_parts(nanoseconds: float, text: str) -> None:
    assert metrics_report.duration_text(nanoseconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0.00B"),
        (1023, "1023.00B"),
        (1024, "1.00KB"),
        (402432, "393.00KB"),
        (1.5 * 1024**2, "1.50MB"),
        (1024**3, "1.00GB"),
        (1024**4, "1.00TB"),
        (1024**5, "1.00PB"),
        (2048 * 1024**5, "2048.00PB"),
    ],
)
def test_bytes(nbytes: float, text: str) -> None:
    assert metrics_report.bytes_text(nbytes) == text


def test_the_sample_of_the_specification() -> None:
    samples = ((100.0, 7_000_000.0), (101.0, 10_037_034.0), (102.0, 20_000_000.0))
    assert metrics_report.metric_text(metric(metrics.Unit.DURATION_NS, *samples), SHORT) == (
        "Metric: CompileTime\n"
        "  TotalSamples: 3\n"
        "  Accumulator: 037ms037.034us\n"
        "  ValueRate: 018ms518.517us / second\n"
        "  Rate: 1.5 / second\n"
        "  Percentiles: 50%=010ms037.034us; 90%=020ms000.000us\n"
    )
    assert metrics_report.counter_text("MarkStep", 3) == "Counter: MarkStep\n  Value: 3\n"


def test_no_rates_without_a_span_of_time() -> None:
    text = metrics_report.metric_text(metric(metrics.Unit.NUMBER, (5.0, 2.0), (5.0, 4.0), name="TensorsGraphSize"), SHORT)
    assert text == "Metric: TensorsGraphSize\n  TotalSamples: 2\n  Accumulator: 6.00\n  Percentiles: 50%=4.00; 90%=4.00\n"


def test_rates_are_of_the_samples_that_were_kept() -> None:
    text = metrics_report.metric_text(metric(metrics.Unit.BYTES, (0.0, 1024.0), (8.0, 3072.0), name="InboundData", before=1e6), SHORT)
    assert text == (
        "Metric: InboundData\n"
        "  TotalSamples: 3\n"
        "  Accumulator: 980.56KB\n"
        "  ValueRate: 512.00B / second\n"
        "  Rate: 0.25 / second\n"
        "  Percentiles: 50%=3.00KB; 90%=3.00KB\n"
    )


def test_a_percentile_is_the_sorted_value_at_the_floor() -> None:
    samples = tuple((0.0, float(value)) for value in reversed(range(10)))
    text = metrics_report.metric_text(metric(metrics.Unit.NUMBER, *samples), (0.01, 0.1, 0.29, 0.5, 0.99, 0.999, 1.0))
    assert text.endswith("  Percentiles: 1%=0.00; 10%=1.00; 29%=2.00; 50%=5.00; 99%=9.00; 99.9%=9.00; 100%=9.00\n")


METRICS = {name: metric(metrics.Unit.NUMBER, (0.0, 1.0), name=name) for name in ("CompileTime", "InboundData")}
COUNTERS = {"MarkStep": 2, "aten::nonzero": 1, "xla::add": 3}
LINES = "  TotalSamples: 1\n  Accumulator: 1.00\n  Percentiles: 50%=1.00\n"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has counted and measured the above."""
    monkeypatch.setattr(abi.metrics, "snapshot", lambda: metrics.Snapshot(COUNTERS, METRICS))
    monkeypatch.setenv("XLA_METRICS_PERCENTILES", "0.5")


@pytest.mark.usefixtures("counted")
def test_metrics_come_first_without_blank_lines() -> None:
    assert metrics_report.metrics_report() == (
        f"Metric: CompileTime\n{LINES}Metric: InboundData\n{LINES}"
        "Counter: MarkStep\n  Value: 2\nCounter: aten::nonzero\n  Value: 1\nCounter: xla::add\n  Value: 3\n"
    )


@pytest.mark.usefixtures("counted")
def test_what_is_listed_in_list_order_then_operators_on_the_cpu() -> None:
    always = "Counter: aten::nonzero\n  Value: 1\n"
    assert metrics_report.short_metrics_report() == f"Metric: CompileTime\n{LINES}Counter: MarkStep\n  Value: 2\n{always}"
    found = metrics_report.short_metrics_report(["xla::add", "Absent", "MarkStep"], ["InboundData", "CompileTime"])
    assert (
        found
        == f"Metric: InboundData\n{LINES}Metric: CompileTime\n{LINES}Counter: xla::add\n  Value: 3\nCounter: MarkStep\n  Value: 2\n{always}"
    )
    assert metrics_report.short_metrics_report([], []) == always
    assert metrics_report.short_metrics_report(["aten::nonzero", "MarkStep"], []) == f"{always}Counter: MarkStep\n  Value: 2\n", "once"


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("text", ["0.5:x", "1.5", "-0.1", ":"])
def test_percentiles_that_are_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_METRICS_PERCENTILES", text)
    with pytest.raises(ValueError, match=f"XLA_METRICS_PERCENTILES is '{text}', must be numbers from 0 to 1"):
        metrics_report.metrics_report()


def test_the_usual_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi.metrics, "snapshot", lambda: metrics.Snapshot({}, {"CompileTime": METRICS["CompileTime"]}))
    monkeypatch.delenv("XLA_METRICS_PERCENTILES", raising=False)
    shown = "; ".join(f"{percent}%=1.00" for percent in (1, 5, 10, 20, 50, 80, 90, 95, 99))
    assert metrics_report.metrics_report() == f"Metric: CompileTime\n  TotalSamples: 1\n  Accumulator: 1.00\n  Percentiles: {shown}\n"
