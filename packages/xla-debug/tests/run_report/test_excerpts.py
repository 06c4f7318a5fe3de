"""The user's source beside findings."""

from __future__ import annotations

from pathlib import Path

from xla_debug.run_report.excerpts import excerpt, source_line, with_excerpts
from xla_debug.run_report.schema import Excerpt, Finding, Problem


def test_a_line_in_its_surroundings(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import time\n\n\ndef wait():\n    # a while\n    time.sleep(1)\n\n\n    return\n")
    assert excerpt(f"{path}:6") == Excerpt(4, ["def wait():", "    # a while", "    time.sleep(1)"])
    assert excerpt(f"{path}:9") == Excerpt(7, ["", "", "return"])
    assert excerpt(f"{path}:1") == Excerpt(1, ["import time"])
    assert source_line(f"{path}:6") == "    time.sleep(1)\n"


def test_what_cannot_be_read_has_none(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("a\n")
    lines = [f"{path}:7", str(path), f"{tmp_path}/none.py:1", None]
    assert [excerpt(line) for line in lines] == [None] * 4 and source_line(None) == ""
    known = Excerpt(1, ["as it was"])
    findings = [Finding(Problem.READS, f"{path}:1", "", "", source=source) for source in (None, known)]
    assert [finding.source for finding in with_excerpts(findings)] == [Excerpt(1, ["a"]), known]
