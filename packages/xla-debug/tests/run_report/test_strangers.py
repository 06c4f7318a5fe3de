"""Run reports of strangers name files: showing such a report opens none of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from xla_debug.cli import group
from xla_debug.run_report import files
from xla_debug.run_report.schema import Replica, RunReport


def test_no_file_that_a_report_names_is_opened(full: Callable[..., Replica], run_report: Callable[..., RunReport], tmp_path: Path) -> None:
    secret, pipe = tmp_path / "secret.py", tmp_path / "pipe.py"
    secret.write_text("token = 'hush'\n")
    os.mkfifo(pipe)  # whoever opened it would wait
    lines = [f"{secret}:1", f"{pipe}:1"]
    findings = [dataclasses.replace(full().findings[0], line=line, source=None) for line in lines]
    replicas = [dataclasses.replace(full(), ordinal=number, findings=findings) for number in range(2)]
    for number, replica in enumerate(replicas):
        files.write(run_report(replica), tmp_path / f"{number}.json")
    page = tmp_path / "page.html"
    for given in (["0.json"], ["0.json", "1.json"]):
        result = CliRunner().invoke(group, ["report", *[str(tmp_path / name) for name in given], "--html", str(page)])
        assert result.exit_code == 0, result.output
        assert str(secret) in page.read_text() and "hush" not in page.read_text() + result.output
