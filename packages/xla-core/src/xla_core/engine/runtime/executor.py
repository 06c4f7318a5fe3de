"""Run graphs: find or build their programs, launch them without waiting, and wait for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import jax

from xla_core.base import metrics
from xla_core.base.errors import ExecutionError, PartFirstError, SealedError, XlaError
from xla_core.base.metrics import Cause, ExecuteEvent
from xla_core.engine.compile import seal
from xla_core.engine.compile.cache import Program, programs
from xla_core.engine.compile.passes import pass_keys, passed
from xla_core.engine.compile.request import Request
from xla_core.engine.compile.words import float_form, words_of
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.graph.selection import set_aside
from xla_core.engine.placement.placement import Placement
from xla_core.engine.runtime import faults, uploads
from xla_core.engine.runtime.client import client, placement_of
from xla_core.engine.runtime.failures import reason
from xla_core.engine.runtime.interrupts import uninterrupted
from xla_core.engine.runtime.source_location import asking_name, region_name, user_line
from xla_core.engine.runtime.timing import Launched, measure
from xla_core.ops import precision

# Called with each graph that is about to run.
GraphWatcher = Callable[[Graph], None]
_watchers: list[GraphWatcher] = []


def watch_graphs(watcher: GraphWatcher) -> Callable[[], None]:
    """Call `watcher(graph)` before each execution, in the thread that asks for it; returns a function that removes it."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


Launcher = Callable[..., list[jax.Array]]
_launcher: Launcher | None = None


def is_replaced() -> bool:
    """Whether something is called instead of `launch`."""
    return _launcher is not None


def launch_by(launcher: Launcher | None) -> Launcher | None:
    """Let `launcher` be called instead of `launch`, with its arguments (None: `launch` itself again). Returns the one that was."""
    global _launcher
    previous, _launcher = _launcher, launcher
    return previous


_last_token: dict[Recorder, jax.Array] = {}

# The programs of one graph by the rest of their keys, as long as the cache in memory has them.
ProgramsOfGraph = WeakValueDictionary[Any, Program]


def execute(
    recorder: Recorder,
    graph: Graph,
    inputs: Inputs,
    keep: Callable[[list[jax.Array]], None],
    cause: Cause | None = None,
    line: str | None = None,
    siblings: ProgramsOfGraph | None = None,
) -> None:
    """Run `graph`, and call `keep` with its results, perhaps still being computed, before Ctrl-C can interrupt. line: the user's line that
    asked for them. siblings: programs of this graph, for a caller that runs it again.

    Raises LoweringError if it cannot be compiled, ExecutionError if it fails at once (a later failure shows when a result is read), and
    SealedError.
    """
    for watcher in tuple(_watchers):
        watcher(graph)
    if recorder.tape is not None:
        inputs = recorder.tape.running(graph, inputs)
    placement = placement_of(recorder)
    program = program_of(recorder, placement, graph, inputs, siblings)
    try:
        results = launch(recorder, placement, program, graph, inputs, keep, cause, line)
    except SealedError:
        set_aside(recorder.pending_graph)
        raise
    if recorder.tape is not None:
        recorder.tape.ran(graph, inputs, program, results)


def program_of(recorder: Recorder, placement: Placement, graph: Graph, inputs: Inputs, siblings: ProgramsOfGraph | None = None) -> Program:
    """The program of a graph on a device, perhaps not compiled yet. siblings: programs of this graph, to look up without its long key."""
    # Besides the graph, what lowerings and passes read: an executable is for one device and one precision.
    settings = (recorder, precision.chosen(), *pass_keys(), *placement.key(inputs.buffers))
    if siblings is None:
        return programs().program((graph.key, *settings), inputs)
    program = siblings.get(settings)
    if program is None:
        program = siblings[settings] = programs().program((graph.key, *settings), inputs)
    else:
        programs().used(program)
    return program


def launch(
    recorder: Recorder,
    placement: Placement,
    program: Program,
    graph: Graph,
    inputs: Inputs,
    keep: Callable[[list[jax.Array]], None],
    cause: Cause | None = None,
    line: str | None = None,
) -> list[jax.Array]:
    """Run the program of `graph`, compiled first if necessary. Calls `keep` with its results, and returns them. Raises as `execute`."""
    if _launcher is not None:
        return _launcher(recorder, placement, program, graph, inputs, keep, cause, line)
    # Locked to the end of the call: the numbers of another thread may turn constants of this program into inputs.
    # 64 bits for the call, too: jax.jit compiles separately with and without them.
    with program.lock, jax.enable_x64(True):
        executable = program.executable if program.matches(inputs) else None
        if executable is None:
            prepare(program, placement, graph, inputs, line)
        # A pass keeps leaves and results in their order (engine/compile/passes.py): inputs and values fit either graph.
        graph = program.changed or graph
        floats, ints = program.numbers(inputs)
        arguments = [*inputs.buffers, *words_of(floats, ints, inputs.seeds, program.float_form)]
        if executable is None:
            # Loaded when a program is first compiled: `import torch_xla` compiles none.
            from xla_core.engine.compile.build import Site, build

            site = Site(str(recorder.device), placement)
            request = Request(region_name(), cause, line)
            # A captured program, and those that become one, run often.
            quickly = recorder.tape is None and cause is not Cause.CAPTURED
            executable = build(site, graph, inputs, program, arguments, request, asking_name(), quickly=quickly)
        else:
            metrics.counter_add("CachedCompile")
        begin = time.perf_counter_ns()
        # The call consumes donated inputs: the buffers that replace them must be stored before Ctrl-C can interrupt.
        with uninterrupted():
            results: list[jax.Array]
            *results, token = _call(recorder, graph, program.changed is not None, executable, arguments)
            keep(results)
    # What checks found is a vector, a bare token a scalar. Nobody writes one for a target.
    if token.ndim and placement.target.attached:
        faults.expect(recorder, token, graph, program.built, placement)
    _measure(recorder, program, token, begin, placement.is_mesh, cause, line)
    if uploads.run_ahead(recorder):
        _catch_up(recorder, token)
    return results


def prepare(program: Program, placement: Placement, graph: Graph, inputs: Inputs, line: str | None) -> None:
    """Decide which numbers are inputs of a program that is about to be compiled, and what graph it is compiled from."""
    seal.check_program(program, graph, inputs, line or user_line())
    program.adapt(inputs)
    programs().learn(program, graph)
    changed = passed(graph)
    program.changed = None if changed is graph else changed
    program.float_form = float_form(changed, placement.context.platform)


def _call(recorder: Recorder, graph: Graph, is_changed: bool, executable: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        return executable(*arguments)
    except PartFirstError as error:
        if is_changed:
            error.slot = None  # of another graph than the caller's
        raise
    except (XlaError, RecursionError):  # a RecursionError is a RuntimeError, but not the program's fault
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        count = len(graph.parts.operations)
        raise ExecutionError(f"a program of {count} operations failed on {recorder.device}: {reason(error)}") from error


def _measure(
    recorder: Recorder, program: Program, token: jax.Array, begin: int, is_mesh: bool, cause: Cause | None, line: str | None
) -> None:
    metrics.counter_add("ExecuteReplicated" if is_mesh else "ExecuteComputation")
    _last_token[recorder] = token
    event = Request(region_name(), cause, line).fields(program) if metrics.has_subscribers(ExecuteEvent) else {}
    called = time.perf_counter_ns() - begin
    metric = "ExecuteReplicatedTime" if is_mesh else "ExecuteTime"
    measure(Launched(recorder.index, token, begin, time.time() - called * 1e-9, metric, event), called)


_marks: dict[Recorder, jax.Array] = {}


def _catch_up(recorder: Recorder, token: jax.Array) -> None:
    """Mark a program that was launched, and wait for the one marked before: programs that have not run hold what was uploaded for them."""
    earlier = _marks.get(recorder)
    _marks[recorder] = token
    if earlier is not None:
        try:
            earlier.block_until_ready()
        except RuntimeError:
            return  # `wait`, or the read of a result, tells of a program that failed


def last_launched(recorder: Recorder) -> jax.Array | None:
    """The token of the last program that was launched on the device: ready when that program and all before it have run."""
    return _last_token.get(recorder)


def wait(recorder: Recorder) -> None:
    """Block until all programs launched on the device have finished; raises ExecutionError if the last one failed."""
    token = _last_token.get(recorder)
    if token is None:
        return
    try:
        token.block_until_ready()
    except RuntimeError as error:
        raise ExecutionError(f"an execution on {recorder.device} failed: {reason(error)}") from error
    faults.look(recorder, wait=True)


def wait_all() -> None:
    """`wait` for every device of this process."""
    for recorder in client().recorders:
        wait(recorder)
