"""What several tests share: real processes that run a program of `programs/`, and what each reported in its last line, as JSON."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked_python
import pytest

PROGRAMS = Path(__file__).parent / "programs"
LIMIT_S = 240

Start = Callable[..., list[subprocess.Popen[str]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(program, *args, processes=1, devices=1)`: the processes of a job, which do not outlive the test. devices: of each."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *args: object, processes: int = 1, devices: int = 1) -> list[subprocess.Popen[str]]:
        job = start_job(program, *args, processes=processes, devices=devices)
        started.extend(job)
        return job

    yield run
    for process in started:
        process.kill()
        process.communicate()


def start_job(program: str, *args: object, processes: int = 1, devices: int = 1) -> list[subprocess.Popen[str]]:
    """The processes of a job, started."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "OMP_NUM_THREADS": "1"}
    if processes > 1:
        shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), *map(str, args)]
    pipes: Any = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return [forked_python.Popen(command, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **pipes) for rank in range(processes)]


def reports_of(job: list[subprocess.Popen[str]]) -> list[Any]:
    """What the processes of a job reported when they ended, which must be well."""
    said = [process.communicate(timeout=LIMIT_S) for process in job]
    assert [process.returncode for process in job] == [0] * len(job), "\n".join(out + err for out, err in said)
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.fixture(scope="session")
def run() -> Callable[..., list[Any]]:
    """`run(program, *args, processes=1, devices=1)`: what each process of a job reported."""
    return lambda *args, **counts: reports_of(start_job(*args, **counts))


@pytest.fixture(scope="session")
def reports() -> Callable[[list[subprocess.Popen[str]]], list[Any]]:
    """`reports_of`."""
    return reports_of
