"""Fixtures for jobs: real processes, started from a program of `programs/`, and the report of each."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked_python
import pytest

PROGRAMS = Path(__file__).parent / "programs"
LIMIT = 240.0


class Job:
    """A program of `programs/` that was started with `size` replicas. Each writes its report as JSON."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, size: int) -> None:
        self.process = process
        self.folder = folder
        self.size = size
        self.start = time.monotonic()

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of the launcher, when it has ended."""
        out, err = self.process.communicate(timeout=LIMIT)
        self.seconds = time.monotonic() - self.start
        return self.process.returncode, out, err

    def reports(self) -> list[Any]:
        """The reports of all replicas; the job must have ended well."""
        code, out, err = self.end()
        assert code == 0, f"exit code {code}\n{out}\n{err}"
        return [self.report(rank) for rank in range(self.size)]

    def report(self, rank: int) -> Any:
        """The report of one replica."""
        return json.loads((self.folder / f"{rank}.json").read_text(encoding="utf-8"))

    def until(self, name: str) -> str:
        """The content of a file that a replica writes, as soon as it is there."""
        path = self.folder / name
        while not path.exists():
            assert self.process.poll() is None, f"the job ended before {name} was written: {self.process.communicate()}"
            assert time.monotonic() - self.start < LIMIT, f"no {name} after {LIMIT} s"
            time.sleep(0.02)
        return path.read_text(encoding="utf-8")


Start = Callable[..., Job]


def run_program(program: str, folder: Path, *args: object, **variables: str) -> subprocess.Popen[str]:
    """Start `programs/<program>.py <folder> <args>` with these variables."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), str(folder), *map(str, args)]
    return forked_python.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """`start(program, size, *args, VARIABLE="value")`: run `programs/<program>.py <folder> <args>` where `spawn` starts `size` replicas."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, size: int, *args: object, **variables: str) -> Job:
        folder = tmp_path_factory.mktemp(program)
        process = run_program(program, folder, *args, CPU_NUM_DEVICES=str(size), **variables)
        started.append(process)
        return Job(process, folder, size)

    yield run
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def launch() -> Iterator[Callable[[list[str], dict[str, str]], subprocess.Popen[str]]]:
    """`launch(command, environment)`: a process that does not outlive the test."""
    started: list[subprocess.Popen[str]] = []

    def run(command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        start_process = forked_python.Popen if forked_python.can_be_forked(command) else subprocess.Popen
        process = start_process(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def free_port() -> int:
    """A port of the loopback address that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
