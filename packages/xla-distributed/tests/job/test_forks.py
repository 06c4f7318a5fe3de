"""Replicas that fork: the end of a child is its own, and a child that outlives its parent hides nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Process = subprocess.Popen[str]
PROGRAM = Path(__file__).parents[1] / "programs" / "forks.py"
FAILED = 1  # the exit code of a program with an uncaught exception


def start(launch: Callable[..., Process], port: int, *args: str) -> list[Process]:
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", **place}
    environment.pop("CPU_NUM_DEVICES", None)
    command = [sys.executable, str(PROGRAM), *args]
    return [launch(command, {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]


def test_children_end_as_they_say_and_the_job_goes_on(launch: Callable[..., Process], free_port: int, tmp_path: Path) -> None:
    for process in start(launch, free_port, str(tmp_path)):
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert err.count("Traceback") == err.count("Uncaught: of the child") == 1, f"only the child that raises says something\n{err}"
    for rank in range(2):
        report = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert report["codes"] == [7, 0, FAILED, 5, 3], "sys.exit, the program's end, an exception, a grandchild's code, multiprocessing"
        assert report["sums"] == [[2.0] * 3, [28.0], [4.0] * 3]


def test_a_child_that_outlives_its_replica_does_not_hide_its_death(launch: Callable[..., Process], free_port: int, tmp_path: Path) -> None:
    survivor, dead = start(launch, free_port, str(tmp_path), "orphan")
    try:
        assert dead.wait(timeout=200) == -signal.SIGKILL
        # Silence alone would tell after 60 s.
        _, err = survivor.communicate(timeout=40)
        assert survivor.returncode == 1 and "replica 1 was lost: its process has died" in err, err
    finally:
        os.kill(int((tmp_path / "child").read_text(encoding="utf-8")), signal.SIGKILL)
