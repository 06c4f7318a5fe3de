"""Reports as numbers, and compared with earlier ones."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.debug.metrics_compare_utils import compare_metrics, get_data_points_from_metrics_reports, parse_metrics_report
from xla_debug.metrics.metrics_comparison import evaluate

REPORT = """[MetricsData; step=3]
Metric: CompileTime
  TotalSamples: 6
  Accumulator: 06m09s401ms746.001us
  ValueRate: 778ms572.062us / second
  Rate: 0.0272264 / second
  Percentiles: 1%=001ms032.778us; 50%=500.000us; 99.9%=01d00h00m00s000ms000.000us
Metric: InboundData
  TotalSamples: 2
  Accumulator: 1.50KB
  Percentiles: 50%=3.00GB
Metric: TensorsGraphSize
  TotalSamples: 2
  Accumulator: 12.00
  Percentiles: 50%=6.00
Counter: MarkStep
  Value: 395

"""

NUMBERS = {
    "CompileTime__TotalSamples": 6,
    "CompileTime__Accumulator_sec": 369.401746001,
    "CompileTime__Percentile_1_sec": 0.001032778,
    "CompileTime__Percentile_50_sec": 0.0005,
    "CompileTime__Percentile_99.9_sec": 86400.0,
    "InboundData__TotalSamples": 2,
    "InboundData__Accumulator_mb": 1.5 / 1024,
    "InboundData__Percentile_50_mb": 3072.0,
    "TensorsGraphSize__TotalSamples": 2,
    "TensorsGraphSize__Accumulator": 12.0,
    "TensorsGraphSize__Percentile_50": 6.0,
    "MarkStep__Value": 395,
}


def test_numbers_of_a_report() -> None:
    assert parse_metrics_report(REPORT) == NUMBERS


def test_texts_of_a_report() -> None:
    found = parse_metrics_report(REPORT, dehumanize=False)
    assert found["CompileTime__Accumulator"] == "06m09s401ms746.001us" and found["InboundData__Percentile_50"] == "3.00GB"
    assert found["CompileTime__TotalSamples"] == 6 and found["MarkStep__Value"] == 395


def test_durations_without_zeros_in_front() -> None:
    text = "Metric: A\n  Accumulator: 1m2s3ms4.5us\n  Percentiles: 50%=7us"
    assert parse_metrics_report(text) == {"A__Accumulator_sec": 62.0030045, "A__Percentile_50_sec": 7e-6}


def test_what_the_runtime_reports_is_read_back() -> None:
    torch_xla.sync(wait=True)
    met.clear_all()
    x = torch.ones(4).to("xla") * 3
    torch_xla.sync(wait=True)
    assert x.sum().item() == 12.0
    found = parse_metrics_report(met.metrics_report())
    data = met.metric_data("CompileTime")
    assert data is not None and found["CompileTime__TotalSamples"] == data[0]
    assert found["CompileTime__Accumulator_sec"] == pytest.approx(data[1] / 1e9, abs=1e-9)
    assert found["MarkStep__Value"] == 1 and found["OutboundData__Accumulator_mb"] == pytest.approx(16 / 1024**2, rel=0.01)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("  Value: 3", "line 1 is not of a metrics report: 'Value: 3'"),
        ("Counter: A\n  Value: many", "line 2 is not"),
        ("Metric: A\n  Accumulator: 3 apples", "line 2 is not"),
        ("Metric: A\n  Percentiles: 1%=", "line 2 is not"),
        ("step 3 loss 0.5", "line 1 is not"),
        ("Counter: A\n  Value: 1\nCounter: A\n  Value: 2\n", "line 3 has 'Counter: A' for the second time"),
    ],
)
def test_what_is_no_report(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_metrics_report(text)


def report(mark_step: int, **counters: int) -> str:
    """A report of counters."""
    lines = {"MarkStep": mark_step, **counters}
    return "".join(f"Counter: {name}\n  Value: {value}\n" for name, value in lines.items())


POINTS = get_data_points_from_metrics_reports([report(8), report(12, Extra=1), report(10)])


def test_data_points_in_the_order_of_the_reports() -> None:
    assert POINTS == {"MarkStep__Value": [8, 12, 10], "Extra__Value": [1]}


def test_the_usual_expression() -> None:
    """Mean 10 and standard deviation sqrt(8 / 3) = 1.63: 13 is within two of them, 14 is not."""
    assert compare_metrics(POINTS, report(13)) == ""
    text = "MarkStep__Value does not fulfil v <= v_mean + (v_stddev * 2.0): v = 14, v_mean = 10, v_stddev = 1.63299\n"
    assert compare_metrics(POINTS, report(14)) == text


def test_expressions_of_ones_own() -> None:
    base: dict[str, str] = {"base_expression": "v == v_mean"}
    assert compare_metrics(POINTS, report(10), base) == ""
    assert compare_metrics(POINTS, report(11), base).startswith("MarkStep__Value does not fulfil v == v_mean: v = 11")
    assert compare_metrics(POINTS, report(11), base | {"MarkStep__Value_expression": "9 < v < 12 and not v > v_mean * 2"}) == ""
    assert compare_metrics(POINTS, report(99), {"Extra__Value_expression": "v < 2"}) == "", "nothing is asked of MarkStep"


def test_new_operators_on_the_cpu_are_listed() -> None:
    found = compare_metrics(POINTS, "Counter: aten::nonzero\n  Value: 2\nCounter: New\n  Value: 5\n")
    assert found == "aten::nonzero__Value is 2: no earlier report has this operator on the CPU\n"


def test_signatures() -> None:
    usual = inspect.signature(compare_metrics).parameters["config"].default
    assert usual == {"base_expression": "v <= v_mean + (v_stddev * 2.0)"}
    assert list(inspect.signature(compare_metrics).parameters) == ["data_points", "report", "config"]


def test_a_key_of_the_configuration_that_is_none() -> None:
    with pytest.raises(ValueError, match="config has the key 'MarkStep'"):
        compare_metrics(POINTS, report(1), {"MarkStep": "v > 1"})


NAMES = {"v": 6.0, "w": -2.5}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("v + w * 2 - 1", 0.0),
        ("(v - 1) / w", -2.0),
        ("-v < +w", True),
        ("1 < v <= 6 != w", True),
        ("1 < v < 6", False),
        ("not v > w or v == w", False),
        ("v > 1 and w > 1", False),
        ("v / 0 > 1e300", True),
        ("v / (w - w) >= 0 and 0 / 0 != 0 / 0", True),
        (" v >= 6 ", True),
    ],
)
def test_expressions(expression: str, value: Any) -> None:
    assert evaluate(expression, NAMES) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "v.__class__",
        "[v]",
        "v if v else w",
        "(lambda: 1)()",
        "x > 1",
        "'v' < 'w'",
        "v ** 9 ** 9",
        "v := 3",
        "v <",
        "",
        "v in (1, 2)",
        "(" * 5000 + "v" + ")" * 5000,
        "-" * 5000 + "v",
    ],
)
def test_expressions_that_are_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be evaluated .*it may hold v, w, numbers, \+ - \* /, comparisons, and, or, not"):
        evaluate(expression, NAMES)
