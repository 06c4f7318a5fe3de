"""What the tests of this package share: scripts in new interpreters, run reports made by hand, profiles read, ports."""

from __future__ import annotations

import os
import platform
import socket
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_python
import jax
import pytest

from xla_debug.run_report.schema import (
    FORMAT,
    VERSION,
    Background,
    Bottleneck,
    Change,
    Compile,
    DeviceMemory,
    Environment,
    Fallback,
    Finding,
    HotLine,
    Live,
    Memory,
    Problem,
    ProgramDifference,
    Replica,
    RunReport,
    Step,
    Sync,
    Transfer,
)

START = 1_750_000_000.0
USUAL = {"tracing": 5.0, "look-up": 1.0, "waiting": 4.0}
"""Milliseconds per step: 10 in all."""


def make_replica(ordinal: int = 0, steps: int = 100, per_step: dict[str, float] | None = None, **fields: Any) -> Replica:
    """A replica whose steps are all alike; `per_step` is in milliseconds by phase."""
    ms = USUAL if per_step is None else per_step
    made: dict[str, Any] = dict(
        ordinal=ordinal,
        pid=1000 + ordinal,
        host=platform.node(),
        hardware="CPU",
        started_s=START,
        seconds=sum(ms.values()) * steps / 1000,
        finished=True,
        steps=steps,
        verdict=Bottleneck.TRACING if steps else Bottleneck.NOTHING,
        phases_ms={phase: value * steps for phase, value in ms.items()},
        device_ms=3.0 * steps,
        measured_steps=steps,
        timeline=[Step(START + index * sum(ms.values()) / 1000, dict(ms), 3.0) for index in range(min(steps, 100))],
    )
    return Replica(**(made | fields))


def make_report(*replicas: Replica, **fields: Any) -> RunReport:
    """The run report of a run that ended well, with the replicas' findings."""
    made: dict[str, Any] = dict(
        format=FORMAT,
        version=VERSION,
        command=["train.py", "--epochs", "3"],
        started_s=START,
        seconds=max((replica.seconds for replica in replicas), default=1.0),
        exit_code=0,
        environment=Environment(
            "3.12.1", "Linux-6.1-x86_64", {"torch": "2.13.0", "jax": "0.10.2"}, {"XLA_DEBUG_ACCOUNT_DIR": "/run/recordings"}
        ),
        replicas=list(replicas),
        findings=[finding for replica in replicas for finding in replica.findings],
    )
    return RunReport(**(made | fields))


def make_full(ordinal: int = 0, **fields: Any) -> Replica:
    """A replica with something in every part of it."""
    shape = ProgramDifference(
        Change.INPUT_SHAPE,
        "input 3 is f32[31,784], was f32[32,784]",
        "/work/app/data.py:7",
        "leave out the last batch (drop_last=True), or pad it",
    )
    compiles = [
        Compile(
            START,
            900.0,
            0,
            "/work/app/train.py:30",
            "user torch_xla.sync",
            "train_step",
            "a1b2",
            120,
            14,
            9,
            ProgramDifference(Change.FIRST, ""),
        ),
        Compile(
            START + 0.4,
            450.0,
            40,
            "/work/app/train.py:30",
            None,
            None,
            "c3d4",
            121,
            14,
            9,
            shape,
            graph="%1 = aten.add(%0, %0) : f32[31,784]",
            donated=2,
            donated_bytes=3 << 20,
        ),
    ]
    steps = [Step(START + index / 100, {"tracing": 6.0, "waiting": 4.0}, 3.0, int(index == 40)) for index in range(100)]
    steps[40] = Step(START + 0.4, {"tracing": 6.0, "compile": 450.0}, 3.0, 1)
    read = Finding(Problem.READS, "/work/app/train.py:41", "a value was read in 100 of 100 steps", "read it every 100 steps", 400.0)
    made: dict[str, Any] = dict(
        per_step={"tracing": 6.0, "compile": 4.5, "waiting": 4.0, "fallback": 0.8},
        timeline=steps,
        compiles=compiles,
        syncs=[
            Sync("/work/app/train.py:30", "step", "user torch_xla.sync", 100, 100, 12.0),
            Sync("/work/app/train.py:41", "read", "value read before sync", 100, 100, 388.0),
        ],
        fallbacks=[Fallback("aten::median", "/work/app/model.py:12", 100, 409_600, 80.0)],
        transfers=[
            Transfer("to_device", "/work/app/train.py:25", 200, 20_070_400, 30.0),
            Transfer("from_device", "/work/app/train.py:41", 100, 400, 1.0),
            Transfer("from_device", "/work/app/model.py:12", 100, 204_800, 9.0),
        ],
        memory=Memory(
            [DeviceMemory("CPU:0", 50 << 20, 64 << 20, 0)],
            [(START, 0), (START + 0.5, 64 << 20), (START + 1.0, 50 << 20)],
            [Live("/work/app/train.py:44", "CPU:0", "f32[1000,1000]", 10, 40_000_000, "list 'losses' (40 items)")],
        ),
        hot_lines=[HotLine("/work/app/model.py:20", "tracing", 300.0)],
        findings=[read],
        background=Background(3, 1500.0, 12),
    )
    return make_replica(ordinal, **(made | fields))


@pytest.fixture
def replica() -> Callable[..., Replica]:
    """Makes a replica whose steps are all alike."""
    return make_replica


@pytest.fixture
def full() -> Callable[..., Replica]:
    """Makes a replica with something in every part of it."""
    return make_full


@pytest.fixture
def run_report() -> Callable[..., RunReport]:
    """Makes the run report of replicas."""
    return make_report


@dataclass(frozen=True)
class ScriptResult:
    """What a script wrote, and where it is."""

    path: Path
    out: str
    err: str

    def line(self, marker: str) -> str:
        """`file:line` of the one line of the script that holds `marker`."""
        (number,) = (number for number, text in enumerate(self.path.read_text(encoding="utf-8").splitlines(), 1) if marker in text)
        return f"{self.path}:{number}"


Script = Callable[..., ScriptResult]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Script:
    """`script(code, VARIABLE="value", …)`: run a file of this code in a process on the CPU; it must exit with 0.

    start: subprocess.run for a new interpreter. Two lines above the code do what the core does with an installed plugin.
    """

    def run(code: str, start: Callable[..., Any] = forked_python.run, **variables: str) -> ScriptResult:
        path = tmp_path_factory.mktemp("script") / "script.py"
        path.write_text(f"from xla_debug.plugin import prepare\nprepare()\n{textwrap.dedent(code)}", encoding="utf-8")
        environment = {**os.environ, "PJRT_DEVICE": "CPU", **variables}
        done = start([sys.executable, str(path)], env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return ScriptResult(path, done.stdout, done.stderr)

    return run


def _names_in(folder: Path) -> Counter[str]:
    files = list(folder.glob("plugins/profile/*/*.xplane.pb"))
    assert files, f"no profile below {folder}"
    planes = [plane for file in files for plane in jax.profiler.ProfileData.from_file(str(file)).planes]
    return Counter(event.name for plane in planes for line in plane.lines for event in line.events)


@pytest.fixture
def names_in() -> Callable[[Path], Counter[str]]:
    """How often each event stands in the profiles below a folder."""
    return _names_in


def _free_port() -> int:
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """A port that nobody listens on."""
    return _free_port
