"""Processes that run a file's tests: one that ends, or takes too long, costs one test."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

sys.path.append(str(Path(__file__).resolve().parents[1]))
from processes import Answer, NoAnswer, Process, share_out

WORKER = Path(__file__).with_name("worker.py")
LIFE = 400
"""Tests after which a process is replaced."""
START_S = 300.0
"""Seconds that a process may take to import a test file, and to make its tests."""
ONLY_FOR = {"cpu": "cpu", "xla": "privateuse1"}
"""How torch's tests call a device in PYTORCH_TESTING_DEVICE_ONLY_FOR."""


class LoadError(Exception):
    """A test file cannot be imported."""


class Worker(Process):
    """A process that has imported a test file. tests: their names; supplied: helpers that torch lacks."""

    def __init__(self, folder: Path, file: str, device: str) -> None:
        environment = {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", **os.environ}
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        command = [sys.executable, str(WORKER), str(folder), file, device]
        super().__init__(command, {**environment, "PYTORCH_TESTING_DEVICE_ONLY_FOR": ONLY_FOR[device]}, self._errors)
        try:
            first = self.answer(START_S)
        except NoAnswer as reason:
            first = self._lost(reason, START_S)
        if "tests" not in first:
            self.stop()
            raise LoadError(first.get("error") or first["text"])
        self.tests: list[str] = first["tests"]
        self.supplied: list[str] = first["supplied"]

    def run(self, name: str, limit_s: float) -> Answer:
        """What becomes of a test."""
        try:
            return self.ask(name, limit_s)
        except NoAnswer as reason:
            return self._lost(reason, limit_s)

    def _lost(self, reason: NoAnswer, limit_s: float) -> Answer:
        if reason.code is None:
            return {"outcome": "timeout", "text": f"not done after {limit_s:.0f} s", "seconds": limit_s}
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        fault = said.rfind("Fatal Python error")  # faulthandler says first which thread it was
        last = said[fault:] if fault >= 0 else said[-2_000:]
        return {"outcome": "ended", "text": f"the process ended with {reason.code}: {last[:4_000]}", "seconds": 0.0}

    def stop(self) -> None:
        """End the process, if it has not ended, and close its files."""
        super().stop()
        self._errors.close()


def run(
    first: Worker,
    folder: Path,
    file: str,
    device: str,
    names: Sequence[str],
    workers: int,
    limit_s: float,
    note: Callable[[str, Answer], None],
) -> None:
    """Run tests of a file in `workers` processes, the first of which is there. `note` is called with each name and answer, by one thread
    at a time.
    """
    ready = [first]

    def start() -> Worker:
        with suppress(IndexError):
            return ready.pop()
        return Worker(folder, file, device)

    try:
        share_out(names, start, lambda worker, name: worker.run(name, limit_s), note, workers, LIFE)
    finally:
        for worker in ready:
            worker.stop()
