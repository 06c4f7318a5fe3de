"""Processes that run a file's tests: one that ends, or takes too long, costs one test, and a fresh one goes on."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

WORKER = Path(__file__).with_name("worker.py")
LIFE = 400
"""Tests after which a process is replaced: compiled programs fill its memory."""
START_S = 300.0
"""Seconds that a process may take to import a test file, and to make its tests."""
Answer = dict[str, Any]
ONLY_FOR = {"cpu": "cpu", "xla": "privateuse1"}
"""How torch's tests call a device in PYTORCH_TESTING_DEVICE_ONLY_FOR."""


class LoadError(Exception):
    """A test file cannot be imported."""


class Worker:
    """A process that has imported a test file. tests: their names; supplied: helpers that torch lacks."""

    def __init__(self, folder: Path, file: str, device: str) -> None:
        environment = {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", **os.environ,
                       "PYTORCH_TESTING_DEVICE_ONLY_FOR": ONLY_FOR[device]}  # fmt: skip
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), file, device],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment, start_new_session=True,
        )  # fmt: skip
        self.asked = 0
        first = self._answer(START_S)
        if "tests" not in first:
            self.stop()
            raise LoadError(first.get("error") or first["text"])
        self.tests: list[str] = first["tests"]
        self.supplied: list[str] = first["supplied"]

    def ask(self, name: str, limit_s: float) -> Answer:
        """What becomes of a test."""
        if self._process.stdin is None:
            raise RuntimeError("a worker needs pipes")
        self.asked += 1
        self._process.stdin.write(f"{name}\n".encode())
        self._process.stdin.flush()
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> Answer:
        pipe = self._process.stdout
        if pipe is None:
            raise RuntimeError("a worker needs pipes")
        with selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_READ)
            if not ready.select(limit_s):
                self.stop()
                return {"outcome": "timeout", "text": f"not done after {limit_s:.0f} s", "seconds": limit_s}
        line = pipe.readline()
        if line:
            answer: Answer = json.loads(line)
            return answer
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-30:]
        return {"outcome": "ended", "text": f"the process ended with {code}: " + "\n".join(last)[:2_000], "seconds": 0.0}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process, if it has not ended, and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()


def run(
    folder: Path, file: str, device: str, names: Sequence[str], workers: int, limit_s: float, note: Callable[[str, Answer], None]
) -> None:
    """Run tests of a file in `workers` processes; `note` is called with each name and answer, by one thread at a time."""
    waiting: SimpleQueue[str] = SimpleQueue()
    for name in names:
        waiting.put(name)
    lock = threading.Lock()
    failed: list[BaseException] = []

    def serve() -> None:
        worker: Worker | None = None
        try:
            while not failed:
                try:
                    name = waiting.get_nowait()
                except Empty:
                    break
                if worker is None or not worker.alive or worker.asked >= LIFE:
                    if worker is not None:
                        worker.stop()
                    worker = Worker(folder, file, device)
                answer = worker.ask(name, limit_s)
                with lock:
                    note(name, answer)
        except BaseException as error:  # the main thread raises it
            failed.append(error)
        finally:
            if worker is not None:
                worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(min(workers, len(names)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
