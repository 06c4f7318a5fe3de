"""Compile programs in threads, the largest first."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax

from xla_core.engine.compile.build import Site, build
from xla_core.engine.compile.cache import Program
from xla_core.engine.compile.request import Request
from xla_core.engine.graph.graph import Graph, Inputs


@dataclass(slots=True, eq=False)
class Job:
    """A program to compile. made: a copy of it with its present constants, on which the thread works."""

    program: Program
    made: Program
    site: Site
    graph: Graph
    inputs: Inputs
    arguments: list[Any]
    request: Request
    name: str

    def take_over(self) -> None:
        """Give the program what was made for it. Under its lock."""
        program, made = self.program, self.made
        program.graph_hash, program.described, program.built, program.results = made.graph_hash, made.described, made.built, made.results
        program.executable = made.executable


class CompileThreads:
    """As many threads as there are processors. Of several jobs for one program only the last one counts.

    progress: is told how many programs are compiled, and how many are known, whenever that changes.
    """

    def __init__(self, progress: Callable[[int, int], None] | None) -> None:
        self.compiled = 0
        """How many programs were compiled, or loaded from disk, so far."""
        self._progress = progress
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, Job]] = []  # a heap: fewer operations, later
        self._numbers = itertools.count()
        self._latest: dict[Program, Job] = {}
        self._failures: list[Exception] = []
        self._pool = ThreadPoolExecutor(os.cpu_count(), "compile_only")

    def __contains__(self, program: Program) -> bool:
        """Whether there is, or was, a job for a program."""
        return program in self._latest

    def note(self, job: Job) -> None:
        """Count a job, which replaces an earlier one of its program."""
        self._latest[job.program] = job
        self._tell()

    def compile_here(self, job: Job) -> None:
        """Compile in this thread, which holds the program's lock. Raises LoweringError."""
        self._build(job)
        job.take_over()

    def start(self, jobs: Sequence[Job]) -> list[Future[None]]:
        """Compile in threads; failures are raised by `finish`."""
        with self._lock:
            for job in jobs:
                heapq.heappush(self._waiting, (-len(job.graph.entries), next(self._numbers), job))
            return [self._pool.submit(self._compile_largest) for _ in jobs]

    def finish(self) -> None:
        """Wait until all is compiled. Raises the first failure, with a note of how many others there are."""
        self._pool.shutdown(wait=True)
        if self._failures:
            first, *others = self._failures
            if others:
                first.add_note(f"{len(others)} more programs could not be compiled, the next one because of: {others[0]}")
            raise first

    def give_up(self) -> None:
        """Compile nothing more that is not begun."""
        with self._lock:
            self._waiting.clear()
        self._pool.shutdown(wait=True)

    def _compile_largest(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            job = heapq.heappop(self._waiting)[-1]
        if self._latest[job.program] is not job:
            return  # its constants have changed meanwhile, and another job has the new ones
        try:
            with jax.enable_x64(True):
                self._build(job)
        except Exception as error:  # raised by `finish`
            self._failures.append(error)
            return
        with job.program.lock:
            if self._latest[job.program] is job:
                job.take_over()

    def _build(self, job: Job) -> None:
        build(job.site, job.graph, job.inputs, job.made, job.arguments, job.request, job.name)
        with self._lock:
            self.compiled += 1
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self.compiled, len(self._latest))
