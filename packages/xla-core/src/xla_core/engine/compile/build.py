"""Make the executable of a program that memory does not have: load it from disk, or trace and compile it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax

from xla_core.base import config, metrics
from xla_core.base.budgets import spent
from xla_core.base.dtypes import check_conversions
from xla_core.base.errors import LoweringError, XlaError
from xla_core.base.metrics import Cause, CompileEvent, Unit
from xla_core.engine.compile import disk, limits
from xla_core.engine.compile.cache import Program, programs
from xla_core.engine.compile.compiler import Executable, jitted
from xla_core.engine.compile.emit import Constants
from xla_core.engine.compile.host_integers import HostIntegers
from xla_core.engine.compile.mappings import mappings
from xla_core.engine.compile.planned_program import PlannedProgram, lowered, results_of
from xla_core.engine.compile.reference import can_evaluate, reference
from xla_core.engine.compile.request import Request
from xla_core.engine.compile.tiers import TieredProgram, evaluated, evaluates_first, has_tiers, quick_program, quick_uses
from xla_core.engine.compile.verify import verify
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.text import graph_hash
from xla_core.engine.graph.view import GraphView
from xla_core.engine.placement.layout import Layout
from xla_core.engine.placement.placement import Placement
from xla_core.engine.placement.planned import planned_like
from xla_core.ops import precision
from xla_core.ops.limits import LIMITS

# Returns the function to call instead of an executable at each execution of its program; the executable itself to change nothing.
ExecutableWrapper = Callable[[GraphView, Executable], Executable]
_wrappers: list[ExecutableWrapper] = []


def register_wrapper(wrapper: ExecutableWrapper) -> Callable[[], None]:
    """Let `wrapper` see every program once, before its first execution; returns a function that removes it."""
    _wrappers.append(wrapper)
    return lambda: _wrappers.remove(wrapper)


# The context to enter while the program of a graph is made.
BuildScope = Callable[[GraphView], AbstractContextManager[object]]
_build_scopes: list[BuildScope] = []


def register_build_scope(scope: BuildScope) -> Callable[[], None]:
    """Enter `scope(graph)` while a program is loaded from disk or compiled, to be run next; returns a function that removes it."""
    _build_scopes.append(scope)
    return lambda: _build_scopes.remove(scope)


@dataclass(frozen=True, slots=True)
class Site:
    """Where a program runs. name: of our device, for messages."""

    name: str
    placement: Placement


def build(
    site: Site, graph: Graph, inputs: Inputs, program: Program, arguments: list[Any], request: Request, name: str, *, quickly: bool = False
) -> Executable:
    """Make the executable of a program, and store it there. name: of the program in profiles. For a target that is not attached, it gives
    planned buffers and runs nothing. quickly: what is ready soonest, compiled or not, until the program is used again.

    Raises LoweringError for a lowering that fails, or if the compiler does.
    """
    with ExitStack() as scopes:
        for scope in _build_scopes:
            scopes.enter_context(scope(graph))
        return _build(site, graph, inputs, program, arguments, request, name, quickly)


def hash_of(site: Site, graph: Graph, inputs: Inputs, program: Program) -> str:
    """The hash of a program that is about to be made, the same in all processes that would make it."""
    placement = site.placement
    settings = (precision.of(placement.context.platform), config.CHECKS.get(), *placement.texts(inputs.buffers))
    return graph_hash(graph, program.constants, *settings)


def _build(
    site: Site, graph: Graph, inputs: Inputs, program: Program, arguments: list[Any], request: Request, name: str, quickly: bool
) -> Executable:
    start, begin = time.time(), time.perf_counter_ns()
    check_conversions()
    checked = config.CHECKS.get()
    if config.CORE_VERIFY.get():
        verify(graph, inputs)
    placement = site.placement
    platform = placement.context.platform
    if platform in LIMITS:
        limits.check(graph, platform)
    constants = program.constants
    program.graph_hash = hash_of(site, graph, inputs, program)
    program.described = _described(site, graph, program)
    layout = placement.layout(graph, [buffer.sharding for buffer in inputs.buffers])
    # In the form in which they enter the program; the caller passes `arguments` as they are.
    entered = arguments if layout.enter is None else layout.enter(arguments)
    if not placement.target.attached:
        function = partial(jitted, graph, constants, placement, name=name, checked=checked)
        _, compiled = _compile(site, graph, inputs, layout, function, entered)
        program.results = results_of(compiled)
        executable: Executable = PlannedProgram(program.results, HostIntegers(graph, constants, platform), compiled)
        disk.store(program.graph_hash, graph, compiled, entered, placement)  # for the processes that have the devices
        _announce(graph, inputs, program, request, start, time.perf_counter_ns() - begin)
    elif config.REFERENCE.get() and can_evaluate(placement):
        executable = reference(graph, constants, placement, layout, checked)
    else:
        make = partial(_loaded_or_compiled, site, graph, name_on_disk=program.graph_hash, layout=layout, name=name, constants=constants)
        compiled = quick = None
        if quickly:
            # Without the buffers, whose memory would stay taken.
            described = replace(inputs, buffers=[planned_like(buffer) for buffer in inputs.buffers])
            again = [*described.buffers, *arguments[len(inputs.buffers) :]]
            better = partial(_in_background, partial(make, described, arguments=again, checked=checked))
            if has_tiers(graph, placement):
                uses = quick_uses(graph, platform)
                quick = partial(quick_program, program, better=better, platform=platform, line=request.line, uses=uses)
        if quickly and evaluates_first(placement):
            executable = TieredProgram(program, evaluated(graph, constants, placement, layout, checked), better, request.line)
        else:
            executable, compiled, is_new = make(inputs, arguments=entered, checked=checked, quick=quick)
            if is_new:
                _announce(graph, inputs, program, request, start, time.perf_counter_ns() - begin)
        if placement.is_mesh:
            program.results = results_of(compiled)
    if layout.outside is not None:
        executable = layout.outside(executable)
    metrics.metric_add("TensorsGraphSize", len(graph.entries), Unit.NUMBER)
    metrics.metric_add("InputOutputAliasCount", len(graph.parts.donated), Unit.NUMBER)
    for wrapper in _wrappers:
        executable = wrapper(graph, executable)
    program.built = constants
    # Last: a build that was interrupted before leaves no executable, and the next execution builds anew.
    program.executable = executable
    return executable


def _loaded_or_compiled(
    site: Site,
    graph: Graph,
    inputs: Inputs,
    *,
    constants: Constants,
    layout: Layout,
    arguments: list[Any],
    checked: bool,
    name: str,
    name_on_disk: str,
    quick: Callable[[Any], TieredProgram] | None = None,
) -> tuple[Executable, Any, bool]:
    """The function to call for a program, the compiled program behind it, and whether it is not from the disk. quick: as for `_compile`."""
    placement = site.placement
    if placement.device.platform == "cpu":
        mappings.make_room(len(graph.parts.operations), programs().forget_half)
    loaded = disk.load(name_on_disk, graph, arguments, placement)
    if loaded is not None:
        return loaded, loaded, False
    make = partial(jitted, graph, constants, placement, name=name, checked=checked)
    executable, compiled = _compile(site, graph, inputs, layout, make, arguments, quick)
    disk.store(name_on_disk, graph, compiled, arguments, placement)
    return executable, compiled, True


def _in_background(make: Callable[[], tuple[Executable, Any, bool]]) -> Executable:
    with jax.enable_x64(True):
        return make()[0]


def count_compilation(duration: int) -> None:
    """Note that a program was compiled. duration: in ns."""
    spent.compiles += 1
    metrics.counter_add("UncachedCompile")
    metrics.counter_add("CreateCompileHandles")
    metrics.metric_add("CompileTime", duration, Unit.DURATION_NS)


def _announce(graph: Graph, inputs: Inputs, program: Program, request: Request, start: float, duration: int) -> None:
    """Count a compilation, and emit its event."""
    count_compilation(duration)
    if metrics.has_subscribers(CompileEvent):
        fields = request.fields(program)
        if request.cause is Cause.DYNAMO_EXECUTE:
            fields["cause"] = Cause.DYNAMO_COMPILE
        constants = (*inputs.fixed_floats, *inputs.fixed_ints)
        donated = tuple(graph.parts.leaf_slots[index] for index in graph.parts.donated)
        metrics.emit(CompileEvent(**fields, start_s=start, duration_ns=duration, graph=graph, constants=constants, donated=donated))


def _compile(
    site: Site,
    graph: Graph,
    inputs: Inputs,
    layout: Layout,
    make: Callable[[Layout], Any],
    arguments: list[Any],
    quick: Callable[[Any], TieredProgram] | None = None,
) -> tuple[Executable, Any]:
    """Trace and compile the function that `make` makes for a layout; returns the function to call, and the compiled program. quick: makes
    a program of two tiers of what jax has lowered.

    Raises LoweringError for a lowering that fails, or if the compiler does.
    """
    function = make(layout)
    try:
        # Outside of the next `try`: a failing lowering raises LoweringError itself, with its place in the graph.
        stage = lowered(function, arguments)
    except (XlaError, RecursionError):  # the latter is not the program's fault
        raise
    except (NotImplementedError, RuntimeError) as error:  # jax has no rule for something on this platform, or lacks a library
        raise LoweringError(f"a program of {len(graph.parts.operations)} operations cannot run on {_where(site)}: {error}") from error
    try:
        try:
            if quick is not None:
                with suppress(RuntimeError):  # the best one may need less memory, and what it raises is what counts
                    return quick(stage), None
            compiled = stage.compile()
        except ValueError:
            if not site.placement.is_mesh:
                raise
            # XLA sharded a result in a way that the mesh cannot describe: replicate it.
            function = make(site.placement.layout(graph, [buffer.sharding for buffer in inputs.buffers], replicate=True))
            stage = lowered(function, arguments)
            compiled = stage.compile()
    except RecursionError:  # not the program's fault
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        count = len(graph.parts.operations)
        raise LoweringError(
            f"a program of {count} operations could not be compiled for {_where(site)}: {error}{_kept_text(stage)}"
        ) from error
    # The jit function finds the program just compiled, and is called faster than `compiled`.
    return function, compiled


def _where(site: Site) -> str:
    target = site.placement.target
    return site.name if target.attached else f"{site.name} of {target.name}"


def _kept_text(stage: Any) -> str:
    """The HLO of a program that did not compile, for the message if `XLA_DUMP_HLO_GRAPH` is set; appended to `XLA_SAVE_HLO_FILE` if set."""
    path, in_message = config.SAVE_HLO_FILE.get(), config.DUMP_HLO_GRAPH.get()
    if path is None and not in_message:
        return ""
    text = str(stage.as_text(dialect="hlo"))
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    return f"\n{text}" if in_message else ""


def _described(site: Site, graph: Graph, program: Program) -> dict[str, Any]:
    """The fields that all events about a program share."""
    return {
        "device": site.name,
        "graph_hash": program.graph_hash,
        "num_nodes": len(graph.parts.operations),
        "num_inputs": len(graph.parts.inputs),
        "num_outputs": len(graph.outs),
    }
