"""Parse metrics reports into numbers, and compare a report with reports of earlier runs."""

from __future__ import annotations

import ast
import math
import operator
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

_BYTES = {unit: 1024**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB"))}
_NS = {"d": 86_400 * 10**9, "h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6}
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_SIZE = re.compile(rf"{_NUMBER}({'|'.join(_BYTES)})")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?(?:(\d+)ms)?(\d+(?:\.\d+)?)us")
_HEADER = re.compile(r"\[MetricsData; step=\d+\]")


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """Parse the numbers of a metrics report: `CompileTime__TotalSamples`, `CompileTime__Accumulator_sec`, `InboundData__Percentile_50_mb`,
    `MarkStep__Value` and so on. Rates are left out: they depend on the time of the report.

    dehumanize: durations in seconds and bytes in MB of 1024² bytes, as their keys say; else their texts, under keys without a unit.
    Raises ValueError for a line that no report has, and for a second report.
    """
    values: dict[str, Any] = {}
    seen: set[tuple[str, str]] = set()
    name = None
    for line_no, line in enumerate(report.splitlines(), 1):
        field, _, text = line.strip().partition(": ")
        if field in ("Metric", "Counter") and text:
            name = text
            if (field, name) in seen:
                raise ValueError(f"line {line_no} has {line.strip()!r} for the second time: give one report, not a file of several")
            seen.add((field, name))
            continue
        if not line.strip() or _HEADER.fullmatch(line.strip()):
            continue
        try:
            values.update(_fields(name, field, text, dehumanize))
        except ValueError:
            raise ValueError(f"line {line_no} is not of a metrics report: {line.strip()!r}; give the text of metrics_report()") from None
    return values


def _fields(name: str | None, field: str, text: str, dehumanize: bool) -> dict[str, Any]:
    """Parse one line below the name of a metric or counter. Raises ValueError for any other line."""
    if name is None:
        raise ValueError(field)
    if field in ("ValueRate", "Rate"):
        return {}
    if field in ("TotalSamples", "Value"):
        return {f"{name}__{field}": int(text)}
    if field == "Accumulator":
        return dict([_quantity(f"{name}__{field}", text, dehumanize)])
    if field == "Percentiles":
        parts = [part.split("%=") for part in text.split("; ")]
        return dict(_quantity(f"{name}__Percentile_{percent}", value, dehumanize) for percent, value in parts)
    raise ValueError(field)


def _quantity(key: str, text: str, dehumanize: bool) -> tuple[str, float | str]:
    """Convert a quantity to a number, and add its unit to the key; unless `dehumanize`, give both unchanged."""
    size, duration = _SIZE.fullmatch(text), _DURATION.fullmatch(text)
    if not dehumanize:
        return key, text
    if size is not None:
        return f"{key}_mb", float(size[1]) * _BYTES[size[2]] / _BYTES["MB"]
    if duration is not None:
        coarse_ns = sum(int(count) * ns for count, ns in zip(duration.groups("0")[:5], _NS.values(), strict=True))
        return f"{key}_sec", (coarse_ns + round(float(duration[6]) * 1000)) / 10**9
    return key, float(text)


def get_data_points_from_metrics_reports(reports: Iterable[str]) -> dict[str, list[float]]:
    """Collect the numbers of metrics reports, in order, by their keys in `parse_metrics_report`. Raises ValueError as it does."""
    points: dict[str, list[float]] = {}
    for report in reports:
        for key, value in parse_metrics_report(report).items():
            points.setdefault(key, []).append(value)
    return points


_USUAL = MappingProxyType({"base_expression": "v <= v_mean + (v_stddev * 2.0)"})


def compare_metrics(data_points: Mapping[str, Sequence[float]], report: str, config: Mapping[str, str] = _USUAL) -> str:
    """Compare a report with the numbers of earlier reports, a line for each difference; empty if there is none.

    data_points: from `get_data_points_from_metrics_reports`. config: `base_expression`, which must hold for every number that earlier
    reports have, and `<key>_expression`, which replaces it for one key. In an expression `v` is the number, `v_mean` and `v_stddev` are
    the mean and standard deviation of the earlier ones (with n in the denominator); it may use arithmetic, comparisons, `and`, `or`, `not`.
    Counters of operators on the CPU that no earlier report had are listed as well.
    Raises ValueError for a text that is no report, and for an invalid expression or key in `config`.
    """
    for key in config:
        if not key.endswith("_expression"):
            raise ValueError(f"config has the key {key!r}: it must be base_expression or <key of a number>_expression")
    differences = []
    for key, value in parse_metrics_report(report).items():
        earlier = data_points.get(key)
        if not earlier:
            if key.startswith("aten::"):
                differences.append(f"{key} is {value:g}: no earlier report has this operator on the CPU")
            continue
        expression = config.get(f"{key}_expression", config.get("base_expression"))
        names = {"v": value, "v_mean": statistics.fmean(earlier), "v_stddev": statistics.pstdev(earlier)}
        if expression is not None and not evaluate(expression, names):
            listed = ", ".join(f"{name} = {operand:g}" for name, operand in names.items())
            differences.append(f"{key} does not fulfil {expression}: {listed}")
    return "".join(f"{line}\n" for line in differences)


_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos}


def evaluate(expression: str, names: Mapping[str, float]) -> Any:
    """Evaluate an expression over named numbers. Raises ValueError for anything but arithmetic, comparisons, and, or, not.

    A division by zero gives infinity, or NaN for zero by zero.
    """
    try:
        return _value(ast.parse(expression.strip(), mode="eval").body, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        allowed = f"{', '.join(names)}, numbers, + - * /, comparisons, and, or, not"
        raise ValueError(f"the expression {expression!r} cannot be evaluated ({error}); it may hold {allowed}") from None


def _value(node: ast.expr, names: Mapping[str, float]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _UNARY[type(op)](_value(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            first, second = _value(left, names), _value(right, names)
            if isinstance(op, ast.Div) and second == 0:
                return math.copysign(math.inf, first) if first else math.nan
            return _BINARY[type(op)](first, second)
        case ast.BoolOp(op=op, values=parts):
            results = (_value(part, names) for part in parts)
            return all(results) if isinstance(op, ast.And) else any(results)
        case ast.Compare(left=left, ops=ops, comparators=rest) if all(type(op) in _BINARY for op in ops):
            numbers = [_value(part, names) for part in (left, *rest)]
            return all(_BINARY[type(op)](a, b) for op, a, b in zip(ops, numbers, numbers[1:], strict=False))
        case _:
            raise ValueError(f"it holds {ast.unparse(node)!r}")
