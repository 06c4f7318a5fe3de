"""Run reports that were made to do harm: each field is changed to what it must not hold, and what is read is rendered in all forms."""

from __future__ import annotations

import copy
import json
import re
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xla_debug.cli import group
from xla_debug.run_report import files
from xla_debug.run_report.errors import RunReportFileError
from xla_debug.run_report.schema import HOST, Replica, RunReport, Span

Place = tuple[str | int, ...]

TEXTS = [
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b31m \x7f \x00 \r\x08",
    "[bold red]markup[/] [link=file:///etc/passwd]x[/link] [/nothing]",
    "</script><script>alert(1)</script><img src=x onerror=alert(1)> &lt; <!--",
    "\u202egnol\u2066 \u2028 \ufeff \U0010ffff",
    "a\nb\nc",
    f"/f.py:{'9' * 5_000}",
    "/f.py:\u0663",
    "/f.py:-1",
    "/f.py:0",
    "",
    "x" * 300_000,
]
NUMBERS = [-1, -(2**63), 2**31, 2**63, 10**30, 10**400, 1e308, -1e308, 5e-324, -0.0, float("nan"), float("inf"), float("-inf")]
OTHERS: list[Any] = [None, True, [], {}, [[]], [None] * 3, {"a": {"a": 1}}, {TEXTS[0]: TEXTS[0]}, json.loads("[" * 200 + "]" * 200)]


@pytest.fixture
def sample(run_report: Callable[..., RunReport], full: Callable[..., Replica]) -> dict[str, Any]:
    """The JSON of a report with something in every part of it."""
    spans = [Span(HOST, "look-up", "sync of a step", 1_750_000_000.0, 3.0, "/work/app/train.py:30", launched_s=1_750_000_000.0)]
    found: dict[str, Any] = json.loads(files.to_json(run_report(full(0, spans=spans), full(1, spans=spans))))
    return found


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Each field of a report, and of what it holds."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, held in items:
        yield (*place, key)
        yield from places(held, (*place, key))


def at(report: dict[str, Any], place: Place) -> Any:
    for key in place:
        report = report[key]  # type: ignore[index]
    return report


def changed(report: dict[str, Any], place: Place, value: Any) -> dict[str, Any]:
    """The report with another value in one field."""
    made = copy.deepcopy(report)
    at(made, place[:-1])[place[-1]] = value
    return made


def test_each_number_has_bounds(sample: dict[str, Any], tmp_path: Path) -> None:
    file, tried = tmp_path / "a.json", 0
    for place in places(sample):
        value = at(sample, place)
        if isinstance(value, bool) or not isinstance(value, int | float) or place == ("version",):
            continue
        for number in (2**64, -(2**64), float("nan"), float("inf"), -1e300):
            file.write_text(json.dumps(changed(sample, place, number)))
            with pytest.raises(RunReportFileError) as caught:
                files.read(file)
            assert str(caught.value).startswith(f"{file}: a run report that is damaged at {'.'.join(map(str, place))}"), caught.value
            tried += 1
    assert tried > 200


def test_each_text_and_list_has_bounds(sample: dict[str, Any], tmp_path: Path) -> None:
    file, tried = tmp_path / "a.json", 0
    for place in places(sample):
        value = at(sample, place)
        if isinstance(value, str) and place != ("format",):
            file.write_text(json.dumps(changed(sample, place, "x" * 200_001)))
            with pytest.raises(RunReportFileError, match=rf"damaged at {re.escape('.'.join(map(str, place)))}"):
                files.read(file)
            tried += 1
    assert tried > 40


@pytest.mark.parametrize("line", [f"/f.py:{'9' * 5_000}", "/f.py:-1", "/f.py:\u0663", "/f.py", "", "/f.py:1\n"])
def test_a_line_is_a_file_and_a_number(line: str, sample: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for place in places(sample):
        if place[-1] == "line":
            file.write_text(json.dumps(changed(sample, place, line)))
            with pytest.raises(RunReportFileError, match=rf"{re.escape('.'.join(map(str, place)))} \(no file:line\)"):
                files.read(file)


def test_the_error_is_one_line_whatever_the_file_says(sample: dict[str, Any], tmp_path: Path) -> None:
    sample["replicas"][0]["phases_ms"] = {f"\x1b[2J\n{'x' * 1000}": "\x1b[2J"}
    (tmp_path / "a.json").write_text(json.dumps(sample))
    result = CliRunner().invoke(group, ["report", str(tmp_path / "a.json")])
    assert result.exit_code == 2 and acts_on_nothing(result.output) and result.output.count("\n") == 1 and len(result.output) < 600


def acts_on_nothing(text: str) -> bool:
    """Whether a terminal only shows it."""
    return not any(unicodedata.category(char) in ("Cc", "Cf") and char != "\n" for char in text)


def rendered(folder: Path, hostile: Any) -> None:
    """Give a report to each command: each ends well, or with one line that names the file; nothing acts on the terminal or the page."""
    file = folder / "account.1.json"
    text = hostile if isinstance(hostile, str) else json.dumps(hostile)
    file.write_text(text)
    good, page = folder / "good", folder / "page.html"
    for line in (
        ["report", str(file)],
        ["report", "--html", str(page), str(file)],
        ["report", "--json", "-", str(file)],
        ["diff", str(good), str(file)],
        ["diff", "--json", "-", str(file), str(good)],
        ["compare", str(file), str(good)],
        ["watch", "--once", str(folder)],
        ["trace", "-o", str(folder / "trace.json"), str(file)],
        ["graph", "--compile", "0", str(file)],
    ):
        result = CliRunner().invoke(group, line)
        assert result.exception is None or isinstance(result.exception, SystemExit), (line, result.exc_info)
        shown = result.output.replace("\u2028", "") if "--json" in line else result.output
        assert result.exit_code in (0, 2) and (acts_on_nothing(shown) or "--json" in line and "\x1b" not in shown), (line, shown[:500])
        if result.exit_code == 2:
            assert result.stderr.count("\n") == 1 and str(file) in result.stderr or line[0] in ("trace", "graph"), result.stderr
    if page.exists():
        written = page.read_text(encoding="utf-8")
        assert "<script>alert" not in written and "<img" not in written and "\x1b" not in written
        page.unlink()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_no_report_breaks_a_form(data: st.DataObject, sample: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "good").write_text(json.dumps(sample))
    hostile = sample
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.sampled_from(list(places(hostile))))
        value = data.draw(st.sampled_from([*TEXTS, *NUMBERS, *OTHERS]) | st.text() | st.integers() | st.floats())
        hostile = changed(hostile, place, value)
    rendered(tmp_path, hostile)


@pytest.mark.parametrize("text", TEXTS[:5])
def test_hostile_texts_in_all_fields_are_shown_as_they_are(text: str, sample: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "good").write_text(json.dumps(sample))
    fixed = {"format", "verdict", "problem", "change"}
    for place in list(places(sample)):
        if isinstance(at(sample, place), str) and place[-1] not in fixed:
            sample = changed(sample, place, f"/{text}.py:3" if place[-1] == "line" else text)
    files.read(tmp_path / "good")
    rendered(tmp_path, sample)
    (tmp_path / "account.1.json").write_text(json.dumps(sample))
    shown = CliRunner().invoke(group, ["report", str(tmp_path / "account.1.json")], env={"COLUMNS": "400"})
    assert shown.exit_code == 0 and len(shown.stdout) > 1000


@pytest.mark.parametrize("operand", ["'\x1b[31m\x9b0m'", f"%{'9' * 5_000}", "%\u0663"])
def test_a_hostile_program_is_shown_or_refused(operand: str, sample: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "good").write_text(json.dumps(sample))
    text = f"%0 = input : f32[3]\n%1 = aten.add.Tensor(%0, {operand}) : f32[3]  # /f\x1b]0;title\x07.py:3\nreturn %1"
    sample["replicas"][0]["compiles"][0]["graph"] = text
    rendered(tmp_path, sample)
    (tmp_path / "program.txt").write_text(text)
    result = CliRunner().invoke(group, ["graph", str(tmp_path / "program.txt")])
    assert result.exit_code in (0, 2) and acts_on_nothing(result.output), result.exc_info


def test_duplicate_keys_and_deep_nesting(sample: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "good").write_text(json.dumps(sample))
    text = json.dumps(sample)
    rendered(tmp_path, text.replace('"version": 1', '"version": 1, "version": 1, "seconds": 1e999'))
    for depth in (500, 5_000, 500_000):
        rendered(tmp_path, text[:-1] + f', "more": {"[" * depth}{"]" * depth}}}')
        rendered(tmp_path, text[:-1] + f', "version": {"[" * depth}{"]" * depth}}}')
    rendered(tmp_path, text.replace('"version": 1', f'"version": {"9" * 5_000}'))
    rendered(tmp_path, text.replace('"train.py"', '"\\ud800"'))
