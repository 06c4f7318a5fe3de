"""The pending program as StableHLO, without running or dropping anything, and StableHLO run as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from xla_core import config
from xla_core._compat import run_module
from xla_core.api.conversion import plain
from xla_core.compile.compiler import across_replicas, readable, source_scope
from xla_core.compile.emit import Constants, arrays_of, program
from xla_core.compile.options import compiler_options
from xla_core.dtypes import torch_dtype
from xla_core.errors import DeviceMismatchError, ExecutionError
from xla_core.export.composites import with_composites
from xla_core.export.uniform import runnable, with_uniform_types
from xla_core.frontend.interop import buffer_of, tensor_from_buffer
from xla_core.frontend.values import value_of
from xla_core.ir.graph import Graph, Inputs, ancestors, extract, inputs_of, live_slots, renamed_lines
from xla_core.ir.pending_graph import Entry, PendingGraph, Value, computed_buffer
from xla_core.runtime.client import current_recorder, default_sharding, jax_device
from xla_core.runtime.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Program:
    """A graph cut out of a pending graph, and what would feed it now."""

    recorder: Recorder
    graph: Graph
    inputs: Inputs

    @property
    def constants(self) -> Constants:
        """The numbers to compile in, as a first execution would."""
        return Constants(tuple(self.inputs.fixed_floats), tuple(self.inputs.fixed_ints))

    @property
    def packed(self) -> list[np.ndarray[Any, Any]]:
        """The host numbers that follow the buffers as arguments."""
        return arrays_of(self.inputs.floats, self.inputs.ints, self.inputs.seeds)


def pending_program(tensors: Iterable[torch.Tensor] | None = None) -> Program:
    """The graph that computes `tensors` (computed ones pass through), or all that is live on the default device. Nothing pending changes.

    Raises DeviceMismatchError for tensors of several devices.
    """
    values = [value_of(plain(tensor)) for tensor in tensors or ()]
    recorder = values[0].recorder if values else current_recorder()
    if any(value.recorder is not recorder for value in values):
        raise DeviceMismatchError("the results of one program are on one device, these are on several: ask for each device's apart")
    with recorder.lock:
        return _cut(recorder, values) if values else _all_live(recorder)


def _all_live(recorder: Recorder) -> Program:
    pending_graph = recorder.pending_graph
    slots = live_slots(pending_graph)
    entries, renamed, input_data = extract(pending_graph, ancestors(pending_graph, slots))
    return _program(recorder, pending_graph, entries, renamed, input_data, [renamed[slot] for slot in slots])


def _cut(recorder: Recorder, values: Sequence[Value]) -> Program:
    pending_graph = recorder.pending_graph
    entries, renamed, input_data = extract(
        pending_graph, ancestors(pending_graph, [value.slot for value in values if value.pending_graph is pending_graph])
    )
    outs = []
    for value in values:
        if value.pending_graph is pending_graph:
            outs.append(renamed[value.slot])
            continue
        buffer = computed_buffer(value)
        outs.append(len(entries))
        input_data[len(entries)] = buffer
        entries.append(value.aval)
    return _program(recorder, pending_graph, entries, renamed, input_data, outs)


def _program(
    recorder: Recorder,
    pending_graph: PendingGraph,
    entries: list[Entry],
    renamed: dict[int, int],
    input_data: dict[int, Any],
    outs: list[int],
) -> Program:
    graph = Graph(tuple(entries), tuple(outs), lines=renamed_lines(pending_graph, renamed))
    return Program(recorder, graph, inputs_of(entries, input_data))


def lower(found: Program, inline_numbers: bool = False, inline_buffers: Collection[int] = ()) -> Any:
    """`jax.stages.Lowered` of a program over its buffers and its packed numbers, but for those that are inlined."""
    graph = with_composites(with_uniform_types(found.graph, found.inputs.buffers))
    emit = program(graph, found.constants, source_scope)
    everything = [*found.inputs.buffers, *found.packed]
    count = len(found.inputs.buffers)
    inlined = {number for number in range(len(everything)) if number in inline_buffers or (inline_numbers and number >= count)}

    def main(*arguments: Any) -> tuple[Any, ...]:
        given = iter(arguments)
        filled = [
            jax.numpy.asarray(np.asarray(argument)) if number in inlined else next(given) for number, argument in enumerate(everything)
        ]
        return emit(*filled)[:-1]  # without the token

    arguments = [argument for number, argument in enumerate(everything) if number not in inlined]
    platform = jax_device(found.recorder).platform
    with jax.enable_x64(True):
        struct: Any = jax.ShapeDtypeStruct
        structs = [struct(argument.shape, argument.dtype) for argument in arguments]
        function = across_replicas(main, default_sharding(found.recorder))
        return jax.jit(function, keep_unused=True).trace(*structs).lower(lowering_platforms=(platform,))


def text_of(lowered: Any) -> str:
    """The module's text; with the user's lines under `XLA_HLO_DEBUG`."""
    return str(lowered.as_text(debug_info=config.HLO_DEBUG.get()))


def bytes_of(lowered: Any) -> bytes:
    """The module as a versioned StableHLO artifact, which later and earlier releases of XLA read too."""
    from jax.extend import mlir  # slow to import
    from jax.extend.mlir.dialects import stablehlo as dialect

    text = str(lowered.compiler_ir("stablehlo"))
    # Unlike the dialect's own function of this name, this one replaces operations of CHLO (erf, top_k), which have no versions.
    return bytes(mlir.serialize_portable_artifact(text, dialect.get_current_version()))


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """StableHLO text of the pending program with `tensors` as results; none given: everything live. Runs and drops nothing."""
    return text_of(lower(pending_program(tensors)))


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """StableHLO of the pending program as bytecode, a portable artifact; `tensors` as in `get_stablehlo`. Runs and drops nothing."""
    return bytes_of(lower(pending_program(tensors)))


def get_hlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """HLO text of the pending program, before XLA's own passes: with the shardings of SPMD mode, as it would run."""
    return str(lower_as_run(pending_program(tensors)).as_text(dialect="hlo"))


def lower_as_run(found: Program) -> Any:
    """`jax.stages.Lowered` of a program over what is like its buffers, and packed numbers, for the device that it is on."""
    function = readable(found.graph, found.constants, default_sharding(found.recorder), "program")
    structs = [jax.ShapeDtypeStruct(buffer.shape, buffer.dtype, sharding=buffer.sharding) for buffer in found.inputs.buffers]
    with jax.enable_x64(True):
        return function.lower(*structs, *found.packed)


def run_stablehlo(bytecode: bytes, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a StableHLO module (bytecode or text) on xla tensors, on their device. Raises ExecutionError if it does not run."""
    device = jax_device(value_of(plain(tensors[0])).recorder if tensors else current_recorder())
    buffers = [buffer_of(plain(tensor)) for tensor in tensors]
    try:
        with jax.enable_x64(True):
            results = run_module(runnable(bytecode), buffers, device, compiler_options(device.platform))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ExecutionError(f"the StableHLO module did not run on {device}: {error}") from error
    return [tensor_from_buffer(result, torch_dtype(result.dtype)) for result in results]
