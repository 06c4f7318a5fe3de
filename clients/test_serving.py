"""The example of a server: nothing compiles behind its seal, and its answers are those of eager torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "serve.py"


@pytest.mark.parametrize("way", [[], ["--continuous"]], ids=["sealed", "continuous"])
def test_the_server_answers_as_eager_torch_and_waits_for_no_compiler(way: list[str]) -> None:
    command = [sys.executable, str(EXAMPLE), "--requests", "12", "--longest", "60", *way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "answers equal to eager torch's: 12 of 12"
    assert lines[-2] == "compiled since the seal: 0" if not way else lines[-2].endswith("waited for 0 compiles")
