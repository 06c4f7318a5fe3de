"""Make the executable of a program that memory does not hold: load it from disk, or trace and compile it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import jax

from xla_core.base import config, metrics
from xla_core.base.dtypes import check_conversions
from xla_core.base.errors import LoweringError
from xla_core.base.metrics import Cause, CompileEvent, Unit
from xla_core.engine.compile import disk
from xla_core.engine.compile.cache import Program
from xla_core.engine.compile.compiler import Executable, devices_of, donated_arguments, jitted, result_shardings
from xla_core.engine.compile.verify import verify
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.text import graph_hash
from xla_core.engine.placement.device_order import in_order_of, relabelled, relabelling
from xla_core.engine.placement.sharding import sharding_text, spans_devices
from xla_core.ops import precision

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


@dataclass(frozen=True, slots=True)
class Target:
    """The device that a program is built for. name: of ours, for texts; default: the sharding of buffers without one of their own."""

    name: str
    device: jax.Device
    default: jax.sharding.Sharding


@dataclass(frozen=True, slots=True)
class Request:
    """The asker of a program, as events name it. region: name of the part of the user's code; line: of the user's."""

    region: str | None
    cause: Cause | None
    line: str | None

    def fields(self, program: Program) -> dict[str, Any]:
        """The fields of an event about a program."""
        return {**program.described, "cause": self.cause, "line": self.line, "name": self.region}


def build(target: Target, graph: Graph, inputs: Inputs, program: Program, arguments: list[Any], request: Request, name: str) -> Executable:
    """Give a program its executable. name: of the program in profiles.

    Raises LoweringError for a lowering that fails, or if the compiler does.
    """
    with ExitStack() as scopes:
        for scope in _build_scopes:
            scopes.enter_context(scope(graph))
        return _build(target, graph, inputs, program, arguments, request, name)


def _build(target: Target, graph: Graph, inputs: Inputs, program: Program, arguments: list[Any], request: Request, name: str) -> Executable:
    start, begin = time.time(), time.perf_counter_ns()
    check_conversions()
    if config.CORE_VERIFY.get():
        verify(graph, inputs)
    shardings = [sharding_text(buffer.sharding) for buffer in inputs.buffers] if spans_devices(target.default) else ()
    program.graph_hash = graph_hash(graph, program.constants, precision.get(), config.CHECKS.get(), *shardings)
    program.described = _described(target, graph, program)
    donated = donated_arguments(graph)
    held = [buffer.sharding for buffer in inputs.buffers]
    arguments = arguments.copy()  # as they enter; the program is run with those of the caller
    arguments[: len(held)] = [_inside(argument, sharding, target.default) for argument, sharding in zip(arguments, held, strict=False)]
    executable = disk.load(program.graph_hash, graph, arguments, target.device, devices_of(target.default))
    if executable is None:
        executable = _compile(target, graph, program, held, arguments, name)
        duration = time.perf_counter_ns() - begin
        metrics.counter_add("UncachedCompile")
        metrics.counter_add("CreateCompileHandles")
        metrics.metric_add("CompileTime", duration, Unit.DURATION_NS)
        if metrics.has_subscribers(CompileEvent):
            fields = request.fields(program)
            if request.cause is Cause.DYNAMO_EXECUTE:
                fields["cause"] = Cause.DYNAMO_COMPILE
            known = (*inputs.fixed_floats, *inputs.fixed_ints)
            leaves = [found.slot for found in graph.inputs()]
            given = tuple(leaves[number] for number in donated)
            metrics.emit(CompileEvent(**fields, start_s=start, duration_ns=duration, graph=graph, constants=known, donated=given))
    if spans_devices(target.default):
        executable = relabelling(executable, held, result_shardings(graph, target.default, held), target.default)
    metrics.metric_add("TensorsGraphSize", len(graph.entries), Unit.NUMBER)
    metrics.metric_add("InputOutputAliasCount", len(donated), Unit.NUMBER)
    for wrapper in _wrappers:
        executable = wrapper(graph, executable)
    # Last: what was cut off before has no executable, and the next execution builds it.
    program.executable = executable
    return executable


def _inside(argument: Any, sharding: Any, default: Any) -> Any:
    """A buffer as it enters a program (engine/placement/device_order.py)."""
    inside = in_order_of(sharding, default)
    return argument if inside is sharding else relabelled(argument, inside)


def _compile(target: Target, graph: Graph, program: Program, given: list[Any], arguments: list[Any], name: str) -> Executable:
    """Trace and compile. Raises LoweringError for a lowering that fails, or if the compiler does."""
    function = jitted(graph, program.constants, target.default, name, given)
    # Outside of the try: a lowering that fails says so itself, with its place in the graph.
    lowered = function.lower(*arguments)
    try:
        try:
            compiled = lowered.compile()
        except ValueError:
            if not spans_devices(target.default):
                raise
            # XLA cut a result in a way that no mesh here describes: have it whole.
            function = jitted(graph, program.constants, target.default, name, given, replicate=True)
            lowered = function.lower(*arguments)
            compiled = lowered.compile()
    except RecursionError:  # not the program's fault
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise LoweringError(
            f"a program of {count_operations(graph)} operations could not be compiled for {target.name}: {error}{_kept_text(lowered)}"
        ) from error
    disk.store(program.graph_hash, graph, compiled, arguments, target.device, devices_of(target.default))
    called: Executable = function  # the jit function finds what was just compiled, and is called faster than `compiled`
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


def count_operations(graph: Graph) -> int:
    """The number of operations of a program."""
    return sum(type(entry) is tuple for entry in graph.entries)


def _described(target: Target, graph: Graph, program: Program) -> dict[str, Any]:
    """The fields that all events of a program share."""
    return {
        "device": target.name,
        "graph_hash": program.graph_hash,
        "num_nodes": count_operations(graph),
        "num_inputs": sum(type(entry) is not tuple and entry is not None for entry in graph.entries),
        "num_outputs": len(graph.outs),
    }
