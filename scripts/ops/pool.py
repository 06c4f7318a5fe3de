"""Workers that do tasks of the operator sweeps: a crash or a time-out costs one task."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from checks import Outcome, Result
from entries import Task

sys.path.append(str(Path(__file__).resolve().parents[1]))
from processes import NoAnswer, Process, share_out

LIFE = 40
"""Tasks after which a worker is replaced."""
START_S = 180
"""Seconds that a worker may take more for its first task: it imports torch's test suite."""

WORKER = Path(__file__).with_name("worker.py")


def ask(worker: Process, task: Task, limit_s: float) -> dict[str, Any]:
    """The result of a task, or how the worker ended."""
    line = json.dumps({"suite": task.suite.value, "number": task.number, "name": task.name})
    try:
        return worker.ask(line, limit_s + (0 if worker.asked else START_S))
    except NoAnswer as reason:
        if reason.code is None:
            return _lost(Outcome.TIMEOUT, f"no result after {limit_s:.0f} s")
        return _lost(Outcome.CRASH, f"the process ended with code {reason.code}")


def _lost(outcome: Outcome, detail: str) -> dict[str, Any]:
    return {"seconds": 0.0, "found": {"any": {"forward": Result(outcome, detail=detail).as_json()}}}


def run(
    tasks: list[Task],
    arguments: list[str],
    workers: int,
    limit_s: float,
    done: Callable[[Task, dict[str, Any]], None],
    script: Path = WORKER,
) -> None:
    """Do all tasks in `workers` processes that run `script`; `done` is called in their threads, one at a time."""
    command = [sys.executable, str(script), *arguments]
    start = partial(Process, command, {"XLA_COMPILATION_CACHE_SIZE": "64", "PJRT_DEVICE": "CPU", **os.environ})
    share_out(tasks, start, partial(ask, limit_s=limit_s), done, workers, LIFE)
