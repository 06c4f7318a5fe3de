"""Compile what is recorded and run none of it: in threads, the largest programs first."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import jax
import numpy as np

from xla_core.base.errors import ExecutionError
from xla_core.base.metrics import Cause
from xla_core.base.private_torch import in_backward
from xla_core.engine.compile.build import Site, build
from xla_core.engine.compile.cache import Program
from xla_core.engine.compile.compiler import Executable
from xla_core.engine.compile.host_integers import HostIntegers
from xla_core.engine.compile.planned_program import PlannedProgram
from xla_core.engine.compile.request import Request
from xla_core.engine.compile.words import words_of
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.placement.placement import Placement
from xla_core.engine.placement.planned import PlannedBuffer
from xla_core.engine.runtime import executor
from xla_core.engine.runtime.interrupts import uninterrupted
from xla_core.engine.runtime.source_location import asking_name, region_name


class Progress(Protocol):
    """Shows how many programs are compiled."""

    def added(self) -> None:
        """There is another program."""

    def done(self) -> None:
        """One more is compiled."""


@dataclass(slots=True, eq=False)
class _Job:
    """A program to compile. made: a copy of it with its present constants, on which the thread works."""

    program: Program
    made: Program
    site: Site
    graph: Graph
    inputs: Inputs
    arguments: list[Any]
    request: Request
    name: str


class Ahead:
    """Stands in for `executor.launch`, in one thread: gives buffers without data, and has the programs compiled.

    placements: the true ones of the devices, whose placements take no data now.
    """

    def __init__(self, placements: Mapping[Recorder, Placement], progress: Progress | None) -> None:
        self._placements = placements
        self._progress = progress
        self._owner = threading.get_ident()
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, _Job]] = []  # a heap: fewer operations, later
        self._order = itertools.count()
        self._jobs: dict[Program, _Job] = {}
        self._plans: WeakKeyDictionary[Program, Executable] = WeakKeyDictionary()
        self._failures: list[Exception] = []
        self._compiled = 0
        self._pool = ThreadPoolExecutor(os.cpu_count(), "compile_only")

    @property
    def compiled(self) -> int:
        """How many programs were compiled, or loaded from disk, so far."""
        return self._compiled

    def launch(
        self,
        recorder: Recorder,
        placement: Placement,
        program: Program,
        graph: Graph,
        inputs: Inputs,
        keep: Callable[[list[jax.Array]], None],
        cause: Cause | None = None,
        line: str | None = None,
    ) -> list[jax.Array]:
        """`executor.launch`, but that nothing runs. Raises ExecutionError in another thread."""
        if threading.get_ident() != self._owner and not in_backward():
            raise ExecutionError(
                f"{line or 'a thread'} runs a program in the thread {threading.current_thread().name} while another one is within "
                "torch_xla.compile_only(), which holds for the whole process: let this thread wait for the end of that block"
            )
        with program.lock, jax.enable_x64(True):
            is_new = not program.matches(inputs) or (program.executable is None and program not in self._jobs)
            if is_new:
                executor.prepare(program, placement, graph, inputs, line)
                self._plans.pop(program, None)
            graph = program.changed or graph
            floats, ints = program.numbers(inputs)
            arguments = [*inputs.buffers, *words_of(floats, ints, inputs.seeds, program.float_form)]
            if is_new:
                planned = [_without_data(buffer) for buffer in inputs.buffers]
                job = _Job(
                    program,
                    replace(program, lock=threading.Lock()),
                    Site(str(recorder.device), self._placements[recorder]),
                    graph,
                    replace(inputs, buffers=planned),
                    [*planned, *arguments[len(planned) :]],
                    Request(region_name(), cause, line),
                    asking_name(),
                )
                self._compile(job, at_once=placement.is_mesh)
            plan = self._plans.get(program)
            if plan is None:
                plan = self._plans[program] = _plan(placement, program, graph, inputs)
            with uninterrupted():
                results: list[jax.Array]
                *results, _ = plan(*arguments)
                keep(results)
        return results

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

    def _compile(self, job: _Job, at_once: bool) -> None:
        """Have a program compiled. at_once: here, since its results have shardings that the compiler chooses."""
        if self._progress is not None and job.program not in self._jobs:
            self._progress.added()
        self._jobs[job.program] = job
        if at_once:
            self._build(job)
            _take_over(job)
            return
        with self._lock:
            heapq.heappush(self._waiting, (-len(job.graph.entries), next(self._order), job))
        self._pool.submit(self._work)

    def _work(self) -> None:
        """Compile the largest program that waits."""
        with self._lock:
            if not self._waiting:
                return
            job = heapq.heappop(self._waiting)[-1]
        if self._jobs[job.program] is not job:
            return  # its constants have changed meanwhile, and another job has the new ones
        try:
            with jax.enable_x64(True):
                self._build(job)
        except Exception as error:  # raised where the block ends
            self._failures.append(error)
            return
        with job.program.lock:
            if self._jobs[job.program] is job:
                _take_over(job)

    def _build(self, job: _Job) -> None:
        build(job.site, job.graph, job.inputs, job.made, job.arguments, job.request, job.name)
        with self._lock:
            self._compiled += 1
            if self._progress is not None:
                self._progress.done()


def _take_over(job: _Job) -> None:
    """Give a program what was made for it. Under its lock."""
    program, made = job.program, job.made
    program.graph_hash, program.described, program.built, program.results = made.graph_hash, made.described, made.built, made.results
    program.executable = made.executable


def _plan(placement: Placement, program: Program, graph: Graph, inputs: Inputs) -> Executable:
    """What gives buffers like the results of a program, with a token."""
    integers = HostIntegers(graph, program.constants, placement.context.platform)
    if program.results is not None:
        plan: Executable = PlannedProgram(program.results, integers)
        layout = placement.layout(graph, [buffer.sharding for buffer in inputs.buffers])
        return plan if layout.outside is None else layout.outside(plan)
    results = [PlannedBuffer(aval.shape, aval.physical, placement.sharding) for aval in graph.parts.results if aval is not None]
    return PlannedProgram([*results, PlannedBuffer((), np.dtype(np.int32), placement.sharding)], integers)


def _without_data(buffer: Any) -> Any:
    """A buffer as the compiler needs it, so that a program that waits keeps no memory."""
    return PlannedBuffer(tuple(buffer.shape), np.dtype(buffer.dtype), buffer.sharding)
