"""Two tiers of programs: one runs first as it is ready soonest, and once it is used again as it runs fastest.

On the CPU a small program compiles first without XLA's fusion emitters and at LLVM's level 0: it is ready in a quarter to a half of the
time, and takes up to three times as long to run. Many programs run a few times. On TPUs programs of all sizes compile first at the
compiler's lowest effort. Where the user wants to wait for no compiler (`evaluate_first`), a program is evaluated first, operation by
operation.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from xla_core.base import config, metrics
from xla_core.base.metrics import Unit
from xla_core.engine.compile import disk
from xla_core.engine.compile.by_torch import by_torch, can_evaluate_by_torch
from xla_core.engine.compile.cache import Program
from xla_core.engine.compile.compiler import Executable
from xla_core.engine.compile.emit import Constants
from xla_core.engine.compile.options import quick_options
from xla_core.engine.compile.reference import can_evaluate, reference
from xla_core.engine.graph.graph import Graph
from xla_core.engine.placement.layout import Layout
from xla_core.engine.placement.placement import Placement

# On the CPU an operation compiles some 15 ms sooner without optimizing, and takes some 2 ns longer for each element of its result. In large
# programs the time is that of passes over the whole program, which are the same in both tiers.
_MOST_OPERATIONS, _MOST_ELEMENTS = 128, 1_500_000
# The better program begins to compile at this use; on the CPU once the uses before have lost 10 ms, a fraction of what it takes.
_FEWEST_USES, _MOST_USES, _MOST_ELEMENTS_OF_USES = 2, 32, 5_000_000


def has_tiers(graph: Graph, placement: Placement) -> bool:
    """Whether a program compiles quickly first. What is kept on disk, and what other processes run too, compiles once."""
    alone = len(placement.devices) == 1 and not placement.is_mesh and placement.target.attached
    if not alone or not config.TIERED_COMPILATION.get() or disk.active() is not None:
        return False
    platform = placement.device.platform
    return platform == "tpu" or (platform == "cpu" and _is_small(graph))


def _is_small(graph: Graph) -> bool:
    """Whether the CPU gains more by compiling a program quickly than it loses by running it twice so."""
    operations, elements = len(graph.parts.operations), _elements(graph)
    # What depends on no tensor, as the first parameters of a model, is computed once; what has few elements loses little.
    if operations > _MOST_OPERATIONS and graph.parts.leaves and elements > _MOST_ELEMENTS_OF_USES:
        return False
    return elements <= _MOST_ELEMENTS * operations


def _elements(graph: Graph) -> int:
    """The elements of all inputs and results of operations."""
    return sum(math.prod(aval.shape) for aval in graph.parts.avals if aval is not None)


def quick_uses(graph: Graph, platform: str) -> int:
    """How often a program that compiled quickly runs until the better one begins to compile."""
    if platform != "cpu":
        return _FEWEST_USES
    return min(max(_MOST_ELEMENTS_OF_USES // max(_elements(graph), 1), _FEWEST_USES), _MOST_USES)


_evaluating: list[object] = []  # each asks for it


def evaluate_first(asking: object) -> None:
    """Evaluate new programs operation by operation, in all threads, and compile those that are used again in the background."""
    _evaluating.append(asking)


def compile_first(asking: object) -> None:
    """End what `evaluate_first` began, unless others have asked for it, too."""
    if asking in _evaluating:
        _evaluating.remove(asking)


def evaluates_first(placement: Placement) -> bool:
    """Whether new programs of a placement are evaluated first. What runs on several devices waits for its collectives, and compiles."""
    return bool(_evaluating) and not placement.is_mesh and placement.target.attached and can_evaluate(placement)


def evaluated(graph: Graph, constants: Constants, placement: Placement, layout: Layout, checked: bool) -> Executable:
    """A program evaluated operation by operation: on the CPU by torch's kernels, elsewhere by executables of single operations."""
    by_kernels = placement.device.platform == "cpu" and can_evaluate_by_torch(graph)
    run = (by_torch if by_kernels else reference)(graph, constants, placement, layout, checked)

    def counted(*arguments: Any) -> Any:
        metrics.counter_add("ExecuteByOperation")
        return run(*arguments)

    return counted


class TieredProgram:
    """Stands for an executable: the first one, until the better one is there."""

    def __init__(
        self, program: Program, first: Executable, compile_best: Callable[[], Executable], line: str | None, uses: int = _FEWEST_USES
    ) -> None:
        """compile_best: called in the background at this use. line: of the user's, for the warning that the better one does not compile."""
        self._program = weakref.ref(program)
        self._compile: Callable[[], Executable] | None = compile_best
        self._line = line
        self._uses_left = uses
        self._problem: str | None = None
        self._best: Executable | None = None
        self._executable = first

    def __call__(self, *arguments: Any) -> Any:
        """Run the program. Under its lock."""
        best = self._best
        if best is not None:
            self._best, self._executable = None, best
            program = self._program()
            if program is not None and program.executable is self:
                program.executable = best
        elif self._uses_left:
            self._uses_left -= 1
            if not self._uses_left:
                _compiler.add(self)
        elif self._problem is not None:
            problem, self._problem = self._problem, None
            warnings.warn(problem, RuntimeWarning, stacklevel=2)
        return self._executable(*arguments)

    def compile_best(self) -> None:
        """Compile the better one; it counts from the next use on."""
        compile_best, self._compile = self._compile, None
        if compile_best is None:
            return
        begin = time.perf_counter_ns()
        try:
            self._best = compile_best()
        except Exception as error:  # said at the next use, which the first one serves, too
            where = "" if self._line is None else f" of {self._line}"
            self._problem = f"a program{where} could not be compiled as it runs fastest, and runs as it did at first: {error}"
        metrics.counter_add("BackgroundCompile")
        metrics.metric_add("BackgroundCompileTime", time.perf_counter_ns() - begin, Unit.DURATION_NS)


def quick_program(
    program: Program, stage: Any, better: Callable[[], Executable], *, platform: str, line: str | None, uses: int = _FEWEST_USES
) -> TieredProgram:
    """A program that compiles as it is ready soonest, now. stage: the program as jax lowered it. better: makes the better one from the
    graph. line, uses: as in TieredProgram.

    Raises RuntimeError if it does not compile so, as where it needs more memory than there is.
    """
    # What jax lowered takes a megabyte, of however small a program: it is kept only where it is needed soon.
    compile_best = stage.compile if uses == _FEWEST_USES else better
    return TieredProgram(program, stage.compile(compiler_options=quick_options(platform)), compile_best, line, uses)


class _Compiler:
    """Compiles in a thread that ends with the process, behind the program at which it is."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[weakref.ref[TieredProgram] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._added = self._done = 0
        self._threads: list[threading.Thread] = []  # one, but for Ctrl-C while it starts
        self._ends = False

    def add(self, program: TieredProgram) -> None:
        """Compile the better one of a program, if it is still there then."""
        with self._idle:
            if not any(thread.is_alive() for thread in self._threads):
                if not self._threads:
                    atexit.register(self._end)  # before a thread may be in the compiler
                self._threads.append(threading.Thread(target=self._work, name="xla_core background compiler", daemon=True))
                self._threads[-1].start()
            self._waiting.put(weakref.ref(program))
            self._added += 1  # last: Ctrl-C before leaves nothing to wait for

    def wait(self) -> None:
        """Wait until all is compiled that was added."""
        with self._idle:
            self._idle.wait_for(lambda: self._done >= self._added)

    def _work(self) -> None:
        while (reference := self._waiting.get()) is not None:
            program = None if self._ends else reference()
            if program is not None:
                program.compile_best()
            del program
            with self._idle:
                self._done += 1
                self._idle.notify_all()

    def _end(self) -> None:
        # A thread within the compiler must not meet the end of the process.
        self._ends = True
        for thread in self._threads:
            self._waiting.put(None)
            if thread.ident is not None:
                thread.join()


_compiler = _Compiler()


def _start_again() -> None:
    """In the child of a fork, which has none of the threads."""
    global _compiler
    _compiler = _Compiler()


os.register_at_fork(after_in_child=_start_again)


def wait_for_background() -> None:
    """Wait until the programs that were used again are compiled; the next use of each runs the better one."""
    _compiler.wait()
