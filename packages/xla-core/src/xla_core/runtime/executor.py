"""Run graphs: find or build the program, call it without waiting, measure it when it is done."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax

from xla_core import config, metrics
from xla_core.compile import disk
from xla_core.compile.cache import Program, ProgramCache
from xla_core.compile.compiler import Executable, devices_of, donated_arguments, jitted
from xla_core.compile.emit import arrays_of
from xla_core.errors import ExecutionError, LoweringError, PluginError, XlaError, described
from xla_core.ir.graph import Graph, Inputs
from xla_core.ir.layout import sharding_text, spans_devices
from xla_core.ir.tape import Recorder
from xla_core.ir.text import graph_hash
from xla_core.ir.verify import verify
from xla_core.metrics import Cause, CompileEvent, ExecuteEvent, Unit
from xla_core.ops import precision
from xla_core.runtime import faults
from xla_core.runtime.client import client, home, jax_device
from xla_core.runtime.failures import reason
from xla_core.runtime.interrupts import uninterrupted
from xla_core.runtime.origin import asking_name, region_name

# Hooks of the ABI: passes see and may replace a graph before it is looked up.
GraphPass = Callable[[Graph], Graph]
_passes: list[GraphPass] = []


def register_pass(graph_pass: GraphPass) -> Callable[[], None]:
    """Run `graph_pass` on every graph before its look-up; returns a function that removes it."""
    _passes.append(graph_pass)
    return lambda: _passes.remove(graph_pass)


def _passed(graph_pass: GraphPass, graph: Graph) -> Graph:
    """Run a pass on a graph. Raises PluginError, which names the pass, if it fails; errors of ours are left as they are."""
    try:
        found = graph_pass(graph)
    except XlaError:
        raise
    except Exception as error:
        raise PluginError(
            f"the graph pass {described(graph_pass)} raised {type(error).__name__}: {error}. Mend it, or remove it with the function that "
            "register_pass gave"
        ) from error
    if not isinstance(found, Graph):
        raise PluginError(
            f"the graph pass {described(graph_pass)} gave {found!r}: a pass returns a graph, that which it was given if it changes nothing"
        )
    return found


# Makes of an executable what is called in its place at each execution of that program; the executable itself to stay out of the way.
ExecutableWrapper = Callable[[Graph, Executable], Executable]
_wrappers: list[ExecutableWrapper] = []


def register_wrapper(wrapper: ExecutableWrapper) -> Callable[[], None]:
    """Let `wrapper` see every program once, before its first execution; returns a function that removes it."""
    _wrappers.append(wrapper)
    return lambda: _wrappers.remove(wrapper)


# What is entered while the program of a graph is made.
BuildScope = Callable[[Graph], AbstractContextManager[object]]
_build_scopes: list[BuildScope] = []


def register_build_scope(scope: BuildScope) -> Callable[[], None]:
    """Enter `scope(graph)` while a program is loaded from disk or compiled, to be run next; returns a function that removes it."""
    _build_scopes.append(scope)
    return lambda: _build_scopes.remove(scope)


@cache
def programs() -> ProgramCache:
    """The in-memory cache of this process."""
    return ProgramCache(config.COMPILATION_CACHE_SIZE.get())


@dataclass(slots=True)
class _Launched:
    """An execution that was handed to the device."""

    token: jax.Array
    begin_ns: int
    start_s: float
    metric: str
    event: dict[str, Any]


_last_token: dict[int, jax.Array] = {}


def execute(
    recorder: Recorder,
    graph: Graph,
    inputs: Inputs,
    keep: Callable[[list[jax.Array]], None],
    cause: Cause | None = None,
    line: str | None = None,
) -> None:
    """Run `graph`, and give `keep` its results, perhaps still being computed, before Ctrl-C may end anything. line: of the user's,
    that asked for them.

    Raises LoweringError if it cannot be compiled, ExecutionError if it fails at once (a later failure shows when a result is read).
    """
    for graph_pass in _passes:
        graph = _passed(graph_pass, graph)
    key: tuple[Any, ...] = (recorder.index, precision.get(), graph.key)
    spans = spans_devices(home(recorder))
    if spans:
        key = (*key, *[buffer.sharding for buffer in inputs.buffers])
    program = programs().program(key, inputs)
    with program.lock, jax.enable_x64(True):
        executable = program.executable if program.matches(inputs) else None
        if executable is None:
            programs().learn(program, graph)
        floats, ints = program.numbers(inputs)
        arguments = [*inputs.buffers, *arrays_of(floats, ints, inputs.seeds)]
        if executable is None:
            with ExitStack() as scopes:
                for scope in _build_scopes:
                    scopes.enter_context(scope(graph))
                executable = _build(recorder, graph, inputs, program, arguments, cause, line)
        else:
            metrics.counter_add("CachedCompile")
        begin = time.perf_counter_ns()
        with uninterrupted():
            results = _call(recorder, graph, executable, arguments)
            keep(list(results[:-1]))
    if results[-1].ndim:
        faults.expect(recorder, results[-1], graph)
    _measure(recorder, program, results[-1], begin, spans, cause, line)


def _call(recorder: Recorder, graph: Graph, executable: Callable[..., Any], arguments: list[Any]) -> Any:
    try:
        return executable(*arguments)
    except (XlaError, RecursionError):
        raise
    except (RuntimeError, ValueError, TypeError) as error:
        raise ExecutionError(f"a program of {_operations(graph)} operations failed on {recorder.device}: {reason(error)}") from error


def _build(
    recorder: Recorder, graph: Graph, inputs: Inputs, program: Program, arguments: list[Any], cause: Cause | None, line: str | None
) -> Callable[..., Any]:
    """The executable of a program that memory does not hold: loaded from disk, or compiled."""
    start, begin = time.time(), time.perf_counter_ns()
    device = jax_device(recorder)
    if config.CORE_VERIFY.get():
        verify(graph, inputs)
    layouts = [sharding_text(buffer.sharding) for buffer in inputs.buffers] if spans_devices(home(recorder)) else ()
    program.graph_hash = graph_hash(graph, program.constants, precision.get(), config.CHECKS.get(), *layouts)
    program.described = _described(recorder, graph, program)
    donated = donated_arguments(graph)
    executable = disk.load(program.graph_hash, graph, arguments, device, devices_of(home(recorder)))
    if executable is None:
        executable = _compile(recorder, graph, program, arguments)
        duration = time.perf_counter_ns() - begin
        metrics.counter_add("UncachedCompile")
        metrics.counter_add("CreateCompileHandles")
        metrics.metric_add("CompileTime", duration, Unit.DURATION_NS)
        if metrics.has_subscribers(CompileEvent):
            known = (*inputs.fixed_floats, *inputs.fixed_ints)
            event = _event(program, Cause.DYNAMO_COMPILE if cause is Cause.DYNAMO_EXECUTE else cause, line)
            leaves = [found.slot for found in graph.inputs()]
            given = tuple(leaves[number] for number in donated)
            metrics.emit(CompileEvent(**event, start_s=start, duration_ns=duration, graph=graph, constants=known, donated=given))
    metrics.metric_add("TensorsGraphSize", len(graph.entries), Unit.NUMBER)
    metrics.metric_add("InputOutputAliasCount", len(donated), Unit.NUMBER)
    for wrapper in _wrappers:
        executable = wrapper(graph, executable)
    program.executable = executable
    return executable


def _compile(recorder: Recorder, graph: Graph, program: Program, arguments: list[Any]) -> Callable[..., Any]:
    """Trace and compile. Raises LoweringError for a lowering that fails, or if the compiler does."""
    device = jax_device(recorder)
    name = asking_name()
    function = jitted(graph, program.constants, home(recorder), name, source_scope)
    lowered = function.lower(*arguments)
    try:
        try:
            compiled = lowered.compile()
        except ValueError:
            if not spans_devices(home(recorder)):
                raise
            # XLA cut a result in a way that no mesh here describes: have it whole.
            function = jitted(graph, program.constants, home(recorder), name, source_scope, told=True)
            lowered = function.lower(*arguments)
            compiled = lowered.compile()
    except RecursionError:  # not the program's fault
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise LoweringError(
            f"a program of {_operations(graph)} operations could not be compiled for {recorder.device}: {error}{_kept_text(lowered)}"
        ) from error
    disk.store(program.graph_hash, graph, compiled, arguments, device, devices_of(home(recorder)))
    called: Callable[..., Any] = function  # the jit function finds what was just compiled, and is called faster than `compiled`
    return called


def _kept_text(lowered: Any) -> str:
    """Keep the HLO of a program that did not compile where `XLA_SAVE_HLO_FILE` and `XLA_DUMP_HLO_GRAPH` ask for it."""
    path, shown = config.SAVE_HLO_FILE.get(), config.DUMP_HLO_GRAPH.get()
    if path is None and not shown:
        return ""
    text = str(lowered.as_text(dialect="hlo"))
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    return f"\n{text}" if shown else ""


def _operations(graph: Graph) -> int:
    return sum(type(entry) is tuple for entry in graph.entries)


def source_scope(name: str, line: str | None) -> AbstractContextManager[Any]:
    """Names the operation and the user's line in the compiled program: `aten.mm[train.py:17]`.

    Of the file the name alone, because / parts scopes; in brackets, because XLA drops what follows an @.
    """
    where = "unknown" if line is None else line.rpartition("/")[2]
    return jax.named_scope(f"{name}[{where}]")


def _described(recorder: Recorder, graph: Graph, program: Program) -> dict[str, Any]:
    """The fields that all events of a program share."""
    return {
        "device": str(recorder.device),
        "graph_hash": program.graph_hash,
        "num_nodes": _operations(graph),
        "num_inputs": sum(type(entry) is not tuple and entry is not None for entry in graph.entries),
        "num_outputs": len(graph.outs),
    }


def _event(program: Program, cause: Cause | None, line: str | None) -> dict[str, Any]:
    return {**program.described, "cause": cause, "line": line, "name": region_name()}


def _measure(
    recorder: Recorder, program: Program, token: jax.Array, begin: int, spans: bool, cause: Cause | None, line: str | None
) -> None:
    metrics.counter_add("ExecuteReplicated" if spans else "ExecuteComputation")
    _last_token[recorder.index] = token
    event = _event(program, cause, line) if metrics.has_subscribers(ExecuteEvent) else {}
    called = time.perf_counter_ns() - begin
    metric = "ExecuteReplicatedTime" if spans else "ExecuteTime"
    launched = _Launched(token, begin, time.time() - called * 1e-9, metric, event)
    if token.is_ready():  # type: ignore[attr-defined]
        if event:
            event["blocked_ns"] = called
        _finished(launched)
    else:
        _waiter().put(launched)


def _finished(launched: _Launched) -> None:
    duration = time.perf_counter_ns() - launched.begin_ns
    metrics.metric_add(launched.metric, duration, Unit.DURATION_NS)
    if launched.event:
        metrics.emit(ExecuteEvent(**launched.event, start_s=launched.start_s, duration_ns=duration))


@cache
def _waiter() -> queue.SimpleQueue[_Launched | None]:
    """A thread that waits for executions in order, so that their time is the device's and not the queue's."""
    launched: queue.SimpleQueue[_Launched | None] = queue.SimpleQueue()

    def run() -> None:
        while (item := launched.get()) is not None:
            try:
                item.token.block_until_ready()
            except RuntimeError:
                metrics.counter_add("ExecuteError")  # the error itself shows where a result is read
                continue
            _finished(item)

    thread = threading.Thread(target=run, name="xla-execution-times", daemon=True)
    thread.start()

    def stop() -> None:
        launched.put(None)
        thread.join()

    atexit.register(stop)
    return launched


def last_launched(recorder: Recorder) -> jax.Array | None:
    """A result of the last program that was launched on the device: ready when that program and all before it have run."""
    return _last_token.get(recorder.index)


def wait(recorder: Recorder) -> None:
    """Block until all that was launched on the device has finished; raises ExecutionError if the last of it failed."""
    token = _last_token.get(recorder.index)
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
