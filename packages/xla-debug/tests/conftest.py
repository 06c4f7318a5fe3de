"""What the tests of this package share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ended:
    """What a script wrote, and where it is."""

    path: Path
    out: str
    err: str

    def line(self, marker: str) -> str:
        """`file:line` of the one line of the script that holds `marker`."""
        (number,) = (number for number, text in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1) if marker in text)
        return f"{self.path}:{number}"


Script = Callable[..., Ended]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """`script(code, VARIABLE="value", …)`: run a file of this code in a new interpreter on the CPU; it must exit with 0.

    Two lines above the code do what the core does with an installed plugin.
    """

    def run(code: str, **variables: str) -> Ended:
        path = tmp_path_factory.mktemp("script") / "script.py"
        path.write_text(f"from xla_debug.plugin import offered\noffered()\n{textwrap.dedent(code)}", encoding="utf-8")
        environment = {**os.environ, "PJRT_DEVICE": "CPU", **variables}
        done = subprocess.run([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Ended(path, done.stdout, done.stderr)

    return run
