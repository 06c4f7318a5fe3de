"""What the tests of the facade share: a process of its own, for what belongs to a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

Run = Callable[..., str]


@pytest.fixture
def run() -> Run:
    """`run(code, VARIABLE="value", …)`: stdout of a new interpreter, on CPU unless told otherwise; None removes a variable."""

    def start(code: str, stderr: bool = False, **variables: str | None) -> str:
        settings: dict[str, str | None] = {**os.environ, "PJRT_DEVICE": "CPU", **variables}
        environment = {name: text for name, text in settings.items() if text is not None}
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr if stderr else done.stdout

    return start
