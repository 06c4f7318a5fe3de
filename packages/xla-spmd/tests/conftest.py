"""What these tests share: programs over eight CPU devices, each run once, whose cases report what they saw as JSON."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
# One process each: devices in their order, and in the order of the first mesh.
PROCESSES = (("marking", "wrapper", "held"), ("order", "manual", "input", "low_level"))

Report = dict[str, Any]


@functools.cache
def _ended(modules: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}
    command = [sys.executable, str(PROGRAMS / "run.py"), *modules]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)


def report_of(name: str) -> Report:
    """What a case saw, by the name of its module and its own, such as `marking.views`."""
    done = _ended(next(modules for modules in PROCESSES if name.partition(".")[0] in modules))
    assert done.returncode == 0, done.stderr
    found: Report = json.loads(done.stdout.splitlines()[-1])[name]
    assert "failed" not in found, found["failed"]
    return found


@pytest.fixture(scope="session")
def report() -> Callable[[str], Report]:
    """`report_of`."""
    return report_of


@pytest.fixture(scope="session")
def refused() -> Callable[..., bool]:
    """`refused(why, kind, *words)`: whether a call raised this builtin type, saying all these words."""
    return lambda why, kind, *words: bool(why) and why[0] == kind and all(word in why[1] for word in words)
