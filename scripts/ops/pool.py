"""Worker processes that outlive what they are given: a crash or a time-out costs one task, and a fresh worker goes on."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from checks import Outcome, Result
from entries import Task

LIFE = 40
"""Tasks after which a worker is replaced: compiled programs fill its memory."""
START_S = 180
"""Seconds that a worker may take more for its first task: it imports torch's test suite."""


WORKER = Path(__file__).with_name("worker.py")


class Worker:
    """One process and its pipes."""

    def __init__(self, script: Path, arguments: list[str]) -> None:
        environment = {"XLA_COMPILATION_CACHE_SIZE": "64", "PJRT_DEVICE": "CPU", **os.environ}
        command = [sys.executable, str(script), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        self.tasks = 0

    def ask(self, task: Task, limit_s: float) -> dict[str, Any]:
        """The result of a task, or how the worker ended."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("a worker needs pipes")
        allowed = limit_s + (0 if self.tasks else START_S)
        self.tasks += 1
        try:
            self.process.stdin.write(json.dumps({"suite": task.suite.value, "number": task.number, "name": task.name}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            if not ready.select(allowed):
                self.process.kill()
                self.process.wait()
                return _lost(Outcome.TIMEOUT, f"no result after {limit_s:.0f} s")
        line = self.process.stdout.readline()
        if not line:
            return self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> dict[str, Any]:
        return _lost(Outcome.CRASH, f"the process ended with code {self.process.wait()}")

    def stop(self) -> None:
        """End the process, if it has not ended, and close its pipes."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


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
    waiting: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        waiting.put(task)
    lock = threading.Lock()

    def serve() -> None:
        worker: Worker | None = None
        while True:
            try:
                task = waiting.get_nowait()
            except Empty:
                break
            if worker is None or worker.tasks >= LIFE or worker.process.poll() is not None:
                if worker is not None:
                    worker.stop()
                worker = Worker(script, arguments)
            answer = worker.ask(task, limit_s)
            with lock:
                done(task, answer)
        if worker is not None:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
