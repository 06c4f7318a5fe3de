"""What these tests share: programs over eight CPU devices, each run once, whose cases report what they saw as JSON."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked_python
import pytest

PROGRAMS = Path(__file__).parent / "programs"
# One process each; the workers of a test run share them. In the last one the first mesh has another order of devices.
PROCESSES = (
    ("marking", "wrapper"),
    ("dtensor",),
    ("local_shards", "kernels", "scan"),
    ("state", "uneven"),
    ("text", "saving"),
    ("order", "manual", "input", "low_level"),
)

Report = dict[str, Any]


def over_eight_devices(*command: str) -> tuple[Report, str]:
    """What a Python process with eight CPU devices reported in its last line of output, as JSON, and its stderr."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}
    done = forked_python.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found: Report = json.loads(done.stdout.splitlines()[-1])
    return found, done.stderr


@pytest.fixture(scope="session")
def eight_devices() -> Callable[..., tuple[Report, str]]:
    """`over_eight_devices`."""
    return over_eight_devices


@functools.cache
def _reports(modules: tuple[str, ...], shared: Path) -> Report:
    """Of a process for these modules, which the first worker that asks starts; the others wait, and read what it left in a folder."""
    file = shared / f"spmd-{'-'.join(modules)}.json"
    with open(file.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(json.dumps(over_eight_devices(str(PROGRAMS / "run.py"), *modules)[0]), encoding="utf-8")
    found: Report = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """`report(name)`: what a case saw, by the name of its module and its own, such as `marking.views`."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def report_of(name: str) -> Report:
        found: Report = _reports(next(modules for modules in PROCESSES if name.partition(".")[0] in modules), shared)[name]
        assert "failed" not in found, found["failed"]
        return found

    return report_of


@pytest.fixture(scope="session")
def refused() -> Callable[..., bool]:
    """`refused(why, kind, *words)`: whether a call raised this builtin type, saying all these words."""
    return lambda why, kind, *words: bool(why) and why[0] == kind and all(word in why[1] for word in words)
