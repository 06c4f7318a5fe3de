"""`xla-debug graph`: programs from files and run reports, as text and drawn; unusable files are one line and exit code 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from xla_debug.cli import group
from xla_debug.run_report import files
from xla_debug.run_report.schema import Replica, RunReport

FIRST = "%0 = input : f32[2]\n%1 = aten.relu(%0) : f32[2]  # train.py:3\nreturn %1"
SECOND = "%0 = input : f32[4]\nreturn %0"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(group, ["graph", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path: Path, run_report: Callable[..., RunReport], full: Callable[..., Replica]) -> Path:
    """A run report of two replicas with three compilations, whose programs are FIRST, none, and SECOND."""
    one, two = full(0).compiles
    replicas = [
        full(0, compiles=[dataclasses.replace(one, graph=FIRST), dataclasses.replace(two, graph="")]),
        full(1, compiles=[dataclasses.replace(one, graph=SECOND)]),
    ]
    path = tmp_path / "report.json"
    files.write(run_report(*replicas), path)
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "graph.txt"
    path.write_text(FIRST, encoding="utf-8")
    return path


def test_a_saved_text_is_printed_as_it_is(text: Path) -> None:
    assert (run(text).exit_code, run(text).stdout) == (0, f"{FIRST}\n")


def test_it_is_drawn_to_a_file(text: Path, tmp_path: Path) -> None:
    picture = tmp_path / "graph.svg"
    result = run(text, "--format", "svg", "--output", picture)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "train.py:3" in "".join(ElementTree.parse(picture).getroot().itertext())
    assert run(text, "--format", "dot").stdout.startswith("digraph program {")


def test_a_compilation_of_a_run_report_is_chosen_over_all_replicas(saved: Path) -> None:
    assert run(saved, "--compile", "0").stdout == f"{FIRST}\n"
    assert run(saved, "--compile", "2").stdout == f"{SECOND}\n"


def test_the_only_compilation_needs_no_choice(tmp_path: Path, run_report: Callable[..., RunReport], full: Callable[..., Replica]) -> None:
    replica = full(0)
    only = dataclasses.replace(replica, compiles=[dataclasses.replace(replica.compiles[0], graph=SECOND)])
    files.write(run_report(only), tmp_path / "report.json")
    assert run(tmp_path / "report.json").stdout == f"{SECOND}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "3 compilations: choose one, --compile 0 to 2"),
        (("--compile", "3"), "no compilation 3 in this run report: it has 3"),
        (("--compile", "1"), "compilation 1 was too large"),
    ],
)
def test_what_a_run_report_does_not_hold_is_said(saved: Path, arguments: tuple[str, ...], words: str) -> None:
    assert_refused(run(saved, *arguments), words)


def test_a_run_report_of_nothing_is_said(tmp_path: Path, run_report: Callable[..., RunReport]) -> None:
    files.write(run_report(), tmp_path / "report.json")
    assert_refused(run(tmp_path / "report.json"), "compiled nothing")


def assert_refused(result: Result, words: str) -> None:
    """One line on stderr that says so, and exit code 2."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1 and words in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"hello\n", "a graph ends with 'return'"),
        (FIRST.encode()[:-3], "cut off"),
        (b"", "empty text"),
        (b"\xff\xfe\x00", "not a text"),
        (b'{"format": "other"}', "no run report"),
        (b'{"format": "xla-debug account", "version": 99}', "upgrade"),
        (b'{"format": "xla-debug acc', "JSON"),
    ],
)
def test_files_that_cannot_be_used_are_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert_refused(run(path), words)


def test_files_that_cannot_be_read_or_written_are_one_line(tmp_path: Path, text: Path) -> None:
    assert_refused(run(tmp_path / "nowhere.txt"), "No such file")
    assert_refused(run(tmp_path), "cannot be read")
    assert_refused(run(text, "--output", tmp_path / "no/where.svg"), "cannot be written")
    assert_refused(run(text, "--compile", "0"), "leave out --compile")


def test_a_program_too_large_for_a_picture_is_said(tmp_path: Path) -> None:
    rows = [f"%{number} = input : f32[2]" for number in range(1001)]
    path = tmp_path / "large.txt"
    path.write_text("\n".join([*rows, "return %0"]), encoding="utf-8")
    assert_refused(run(path, "--format", "svg"), "ask for dot")
    assert run(path, "--format", "dot").exit_code == 0
