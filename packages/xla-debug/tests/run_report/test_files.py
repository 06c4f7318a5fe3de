"""Run reports as files: what is written comes back, and what cannot be read is said in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_python
import pytest

from xla_debug.run_report import files
from xla_debug.run_report.errors import RunReportFileError
from xla_debug.run_report.schema import FORMAT, VERSION, Replica, RunReport

WRITER = """
import sys
from xla_debug.run_report import files
small, large = files.read(sys.argv[1]), files.read(sys.argv[2])
print("ready", flush=True)
for turn in range(200):
    files.write(large if turn % 2 else small, sys.argv[3])
"""


@pytest.fixture
def sample(run_report: Callable[..., RunReport], full: Callable[..., Replica]) -> RunReport:
    return run_report(full(0), full(1))


def test_what_is_written_comes_back(sample: RunReport, tmp_path: Path) -> None:
    files.write(sample, tmp_path / "a.json")
    assert files.read(tmp_path / "a.json") == sample
    assert os.listdir(tmp_path) == ["a.json"]
    text = (tmp_path / "a.json").read_text()
    assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False), "compact"
    assert json.loads(text)["replicas"][0]["verdict"] == "tracing-bound"


def test_names_that_are_no_unicode(sample: RunReport, tmp_path: Path) -> None:
    files.write(dataclasses.replace(sample, command=["caf\udce9.py", "é"]), tmp_path / "a.json")
    assert files.read(tmp_path / "a.json") == dataclasses.replace(sample, command=["caf?.py", "é"])


def test_fields_of_later_times_are_passed_over(sample: RunReport, tmp_path: Path) -> None:
    data = json.loads(files.to_json(sample)) | {"weather": "fine"}
    data["replicas"][0]["compiles"][0]["color"] = "red"
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert files.read(tmp_path / "a.json") == sample


def test_fields_with_defaults_may_lack(sample: RunReport, tmp_path: Path) -> None:
    data = json.loads(files.to_json(sample))
    del data["findings"], data["replicas"][0]["memory"]
    (tmp_path / "a.json").write_text(json.dumps(data))
    found = files.read(tmp_path / "a.json")
    assert found.findings == [] and found.replicas[0].memory.devices == [] and found.replicas[1] == sample.replicas[1]


def error(path: Path) -> str:
    """The one line about a file that cannot be read."""
    with pytest.raises(RunReportFileError) as caught:
        files.read(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and "\n" not in text and "; " in text, "file, what is wrong, and what to do"
    return text


def test_a_missing_file(tmp_path: Path) -> None:
    assert "no such file" in error(tmp_path / "a.json")
    assert "cannot be read" in error(tmp_path)


def test_cut_off_anywhere(sample: RunReport, tmp_path: Path) -> None:
    data = files.to_json(sample)
    path = tmp_path / "a.json"
    for length in [0, *range(30, len(data), 97), len(data) - 1]:
        path.write_bytes(data[:length])
        assert f"cut off after {length} bytes" in error(path)


@pytest.mark.parametrize("data", [b"hello", b"\x89PNG\r\n\x1a\n", b"{'a': 1}", b"[" * 100_000])
def test_no_json(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(data)
    assert "not JSON" in error(tmp_path / "a.json")


@pytest.mark.parametrize("data", [[], 3, {}, {"format": "a diary", "version": 1}])
def test_other_json(data: object, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert "no run report" in error(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": VERSION + 1}, f"version {VERSION + 1}, this xla-debug reads up to {VERSION}; upgrade"),
        ({"version": "1"}, "version '1'"),
        ({"version": None}, "version None"),
        ({"version": 0}, "version 0"),
        ({"replicas": 3}, "damaged at replicas"),
        ({"seconds": "long"}, "damaged at seconds"),
        ({"findings": [{"problem": "boredom", "line": None, "text": "", "advice": ""}]}, "damaged at findings.0.problem"),
    ],
)
def test_damaged_and_newer(change: dict[str, Any], said: str, sample: RunReport, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(json.loads(files.to_json(sample)) | change))
    assert said in error(tmp_path / "a.json")


def test_a_newer_run_report_need_not_look_like_ours(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"format": FORMAT, "version": VERSION + 1, "runs": []}))
    assert "upgrade" in error(tmp_path / "a.json")


def test_readers_see_no_part(sample: RunReport, run_report: Callable[..., RunReport], tmp_path: Path) -> None:
    small, target = run_report(), tmp_path / "target.json"
    for name, one in (("small.json", small), ("large.json", sample), ("target.json", small)):
        files.write(one, tmp_path / name)
    command = [sys.executable, "-c", WRITER, *(str(tmp_path / name) for name in ("small.json", "large.json", "target.json"))]
    with forked_python.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        while writer.poll() is None:
            assert files.read(target) in (small, sample)
    assert writer.returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["large.json", "small.json", "target.json"]


def test_a_write_that_fails_leaves_nothing(sample: RunReport, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        files.write(sample, tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError):
        files.write(sample, tmp_path / "nowhere" / "a.json")
