"""Compile what is recorded and run none of it, in a job of several processes together with the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from xla_core.base.errors import ExecutionError
from xla_core.base.metrics import Cause
from xla_core.base.private_torch import in_backward
from xla_core.engine.compile.build import Site, hash_of
from xla_core.engine.compile.cache import Program
from xla_core.engine.compile.compiler import Executable
from xla_core.engine.compile.host_integers import HostIntegers
from xla_core.engine.compile.nearest import KnownProgram
from xla_core.engine.compile.planned_program import PlannedProgram
from xla_core.engine.compile.ranks import Needed, Ranks
from xla_core.engine.compile.request import Request
from xla_core.engine.compile.words import words_of
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.placement.placement import Placement
from xla_core.engine.placement.planned import PlannedBuffer, planned_like
from xla_core.engine.runtime import executor
from xla_core.engine.runtime.compile_threads import CompileThreads, Job
from xla_core.engine.runtime.interrupts import uninterrupted
from xla_core.engine.runtime.source_location import asking_name, region_name, user_line


class Ahead:
    """Stands in for `executor.launch`, in one thread: gives buffers without data, and has the programs compiled.

    placements: the true ones of the devices, whose placements take no data now. ranks: of a job of several processes, else None.
    """

    def __init__(self, placements: Mapping[Recorder, Placement], threads: CompileThreads, ranks: Ranks | None) -> None:
        self._placements = placements
        self._threads = threads
        self._ranks = ranks
        self._owner = threading.get_ident()
        self._plans: WeakKeyDictionary[Program, Executable] = WeakKeyDictionary()
        # Of a job of several processes, in the order in which they were first needed.
        self._needed: dict[Program, Needed] = {}
        self._jobs: dict[Program, Job] = {}
        self._started: list[Future[None]] = []

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
        line = line or user_line()
        with program.lock, jax.enable_x64(True):
            is_new = not program.matches(inputs) or (program.executable is None and program not in self._threads)
            if is_new:
                executor.prepare(program, placement, graph, inputs, line)
                self._plans.pop(program, None)
            described = partial(KnownProgram.of, graph, (*inputs.fixed_floats, *inputs.fixed_ints), line, "")
            graph = program.changed or graph
            floats, ints = program.numbers(inputs)
            arguments = [*inputs.buffers, *words_of(floats, ints, inputs.seeds, program.float_form)]
            job = None
            if is_new:
                site = Site(str(recorder.device), self._placements[recorder])
                job = _job(program, site, graph, inputs, arguments, Request(region_name(), cause, line))
                self._threads.note(job)
            if self._ranks is None:
                self._compile(job)
            elif is_new or program not in self._needed:
                key = program.graph_hash if job is None else hash_of(job.site, graph, job.inputs, job.made)
                acts_on_others = placement.is_mesh or any(signature.has_side_effects for signature in graph.parts.signatures)
                self._needed[program] = Needed(key, acts_on_others, line, described)
                self._compile_among(self._ranks, program, job)
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
        if self._ranks is not None and not self._on_mesh():  # also if it needs nothing: the others ask it
            self._compile_shares(self._ranks)
        self._threads.finish()

    def _on_mesh(self) -> bool:
        return any(placement.is_mesh for placement in self._placements.values())

    def _compile(self, job: Job | None) -> None:
        """Have a program compiled: at once on a mesh, since its results have shardings that the compiler chooses."""
        if job is not None and job.site.placement.is_mesh:
            self._threads.compile_here(job)
        elif job is not None:
            self._started += self._threads.start([job])

    def _compile_among(self, ranks: Ranks, program: Program, job: Job | None) -> None:
        """Have a program compiled that other processes need, too. job: None if it is there."""
        if self._on_mesh():
            owners = ranks.owners([self._needed[program]])
            mine = owners is None or owners[0] == ranks.index
            if not mine:
                ranks.wait([])
            try:
                self._compile(job)
            finally:
                if mine and owners is not None:
                    ranks.wait([])
        elif job is not None:
            self._jobs[program] = job
            if ranks.index == 0 or not ranks.share():
                self._compile(job)

    def _compile_shares(self, ranks: Ranks) -> None:
        """Compile what no process before this one needs, wait for theirs, and load that."""
        owners = dict(zip(self._needed, ranks.owners(list(self._needed.values())) or [], strict=False))
        if ranks.index and ranks.share():
            mine = [job for program, job in self._jobs.items() if owners.get(program, ranks.index) == ranks.index]
            self._started += self._threads.start(mine)
        if owners:
            ranks.wait(self._started)
            self._threads.start([job for program, job in self._jobs.items() if owners[program] < ranks.index])


def _job(program: Program, site: Site, graph: Graph, inputs: Inputs, arguments: list[Any], request: Request) -> Job:
    """To compile a program. It keeps no memory of the device while it waits."""
    buffers: list[Any] = [planned_like(buffer) for buffer in inputs.buffers]
    planned, rest = replace(inputs, buffers=buffers), arguments[len(buffers) :]
    return Job(program, replace(program, lock=threading.Lock()), site, graph, planned, [*buffers, *rest], request, asking_name())


def _plan(placement: Placement, program: Program, graph: Graph, inputs: Inputs) -> Executable:
    """What gives buffers like the results of a program, with a token."""
    integers = HostIntegers(graph, program.constants, placement.context.platform)
    if program.results is not None:
        plan: Executable = PlannedProgram(program.results, integers)
        layout = placement.layout(graph, [buffer.sharding for buffer in inputs.buffers])
        return plan if layout.outside is None else layout.outside(plan)
    results = [PlannedBuffer(aval.shape, aval.physical, placement.sharding) for aval in graph.parts.results if aval is not None]
    return PlannedProgram([*results, PlannedBuffer((), np.dtype(np.int32), placement.sharding)], integers)
