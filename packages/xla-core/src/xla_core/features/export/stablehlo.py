"""Shows the pending program as StableHLO without running or dropping anything, and runs StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base import config
from xla_core.base.budgets import budget
from xla_core.base.dtypes import torch_dtype
from xla_core.base.errors import DeviceMismatchError, ExecutionError
from xla_core.base.private_jax import compile_module, lowering_platform
from xla_core.engine.compile.compiler import readable, source_scope
from xla_core.engine.compile.emit import Constants, arrays_of, program
from xla_core.engine.compile.options import compiler_options
from xla_core.engine.graph.cut import cut
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.graph.selection import live_values
from xla_core.engine.placement.device_order import in_order_of
from xla_core.engine.runtime.client import current_recorder, jax_device, placement_of, recorder_of
from xla_core.engine.runtime.resharding import whole
from xla_core.engine.tensor.interop import buffer_of, tensor_from_buffer
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.values import value_of
from xla_core.features.export.composites import with_composites
from xla_core.features.export.uniform import runnable, with_uniform_types

Run = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class PendingProgram:
    """A graph cut out of a pending graph, with its present inputs."""

    recorder: Recorder
    graph: Graph
    inputs: Inputs

    @property
    def constants(self) -> Constants:
        """The numbers that a first run compiles in as constants."""
        return Constants(tuple(self.inputs.fixed_floats), tuple(self.inputs.fixed_ints))

    @property
    def packed(self) -> list[np.ndarray[Any, Any]]:
        """The packed host numbers, the arguments behind the buffers."""
        return arrays_of(self.inputs.floats, self.inputs.ints, self.inputs.seeds)


def pending_program(tensors: Iterable[torch.Tensor] | None = None) -> PendingProgram:
    """Cut the graph that computes `tensors` (computed ones pass through), or all live values of the default device. Changes nothing.

    Raises DeviceMismatchError for tensors of several devices.
    """
    values = [value_of(unwrapped(tensor)) for tensor in tensors or ()]
    recorder = values[0].recorder if values else current_recorder()
    if any(value.recorder is not recorder for value in values):
        raise DeviceMismatchError("the results of one program are on one device, these are on several: ask for each device's apart")
    with recorder.lock:
        pending_graph = recorder.pending_graph
        return PendingProgram(recorder, *cut(pending_graph, values or live_values(pending_graph)))


def lower(pending: PendingProgram) -> Any:
    """`jax.stages.Lowered` of a program over its buffers and packed numbers."""
    emit = program(
        for_readers(pending.graph, pending.inputs.buffers.__getitem__),
        pending.constants,
        placement_of(pending.recorder).context,
        source_scope,
    )

    def main(*arguments: Any) -> tuple[Any, ...]:
        return emit(*arguments)[:-1]  # without the token

    structs = [jax.ShapeDtypeStruct(argument.shape, argument.dtype) for argument in (*_values(pending), *pending.packed)]
    return lowered(placement_of(pending.recorder).spread(main), structs, jax_device(pending.recorder))


def for_readers(graph: Graph, value: Callable[[int], Any]) -> Graph:
    """`graph` with quantized types and composites, for readers of StableHLO. value: as in `with_uniform_types`."""
    return with_composites(with_uniform_types(graph, value))


def lowered(function: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct], device: jax.Device) -> Any:
    """`jax.stages.Lowered` of a function for arrays like `structs`, for a device like this."""
    with jax.enable_x64(True):
        return jax.jit(function, keep_unused=True).trace(*structs).lower(lowering_platforms=(lowering_platform(device),))


def _values(pending: PendingProgram) -> list[Any]:
    """The values of a program's leaves, without padding."""
    leaves = pending.graph.parts.leaves
    default = placement_of(pending.recorder).sharding
    return [whole(buffer, aval, default) for buffer, aval in zip(pending.inputs.buffers, leaves, strict=True)]


def text_of(lowered: Any) -> str:
    """The module's text, with the user's lines if `XLA_HLO_DEBUG` is set."""
    return str(lowered.as_text(debug_info=config.HLO_DEBUG.get()))


def bytes_of(lowered: Any) -> bytes:
    """The module as a versioned StableHLO artifact, which other releases of XLA can read."""
    return artifact(str(lowered.compiler_ir("stablehlo")))


def artifact(text: str) -> bytes:
    """A module's text as a versioned StableHLO artifact."""
    from jax.extend import mlir  # slow to import
    from jax.extend.mlir.dialects import stablehlo as dialect

    # Unlike the dialect's function of this name, this one replaces CHLO operations (erf, top_k), which have no versions.
    return bytes(mlir.serialize_portable_artifact(text, dialect.get_current_version()))


def stablehlo_version() -> str:
    """The version of StableHLO that artifacts are written in."""
    from jax.extend.mlir.dialects import stablehlo as dialect  # slow to import

    return str(dialect.get_current_version())


@budget()
def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """StableHLO text of the pending program with `tensors` as results, or with all live values. Runs and drops nothing."""
    return text_of(lower(pending_program(tensors)))


@budget()
def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """StableHLO of the pending program as bytecode, a portable artifact; `tensors` as in `get_stablehlo`. Runs and drops nothing."""
    return bytes_of(lower(pending_program(tensors)))


def get_hlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """HLO text of the pending program before XLA's own passes, with the shardings of SPMD mode, as it would run.

    Has metadata (names of operations, lines) if `XLA_HLO_DEBUG` is set, or if operations keep lines or have names.
    """
    pending = pending_program(tensors)
    return str(lower_as_run(pending).as_text(dialect="hlo", debug_info=bool(pending.graph.lines) or config.HLO_DEBUG.get()))


def lower_as_run(pending: PendingProgram) -> Any:
    """`jax.stages.Lowered` of a program as it would run: for its device, over arrays like its buffers, and packed numbers."""
    placement = placement_of(pending.recorder)
    shardings = [buffer.sharding for buffer in pending.inputs.buffers]
    function = readable(pending.graph, pending.constants, placement, placement.layout(pending.graph, shardings), "program")
    structs = [
        jax.ShapeDtypeStruct(buffer.shape, buffer.dtype, sharding=in_order_of(buffer.sharding, placement.sharding))
        for buffer in pending.inputs.buffers
    ]
    with jax.enable_x64(True):
        return function.lower(*structs, *pending.packed)


def compiled(bytecode: bytes, device: torch.device) -> Run:
    """Compile a StableHLO module, an artifact or UTF-8 text, to a function of xla tensors on `device`.

    Raises ExecutionError if it does not compile. The function raises it if it cannot run on its arguments.
    """
    jax_target = jax_device(recorder_of(device))

    def failed(error: Exception) -> ExecutionError:
        return ExecutionError(f"the StableHLO module did not run on {jax_target}: {error}")

    try:
        execute = compile_module(runnable(bytecode), jax_target, compiler_options(jax_target.platform, has_loops=b"while" in bytecode))
    except (RuntimeError, ValueError, TypeError) as error:
        raise failed(error) from error

    def run(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        buffers = [buffer_of(unwrapped(tensor)) for tensor in tensors]
        try:
            with jax.enable_x64(True):
                results = execute([jax.device_put(buffer, jax_target) for buffer in buffers])  # in SPMD mode, on one device
        except (RuntimeError, ValueError, TypeError) as error:
            raise failed(error) from error
        return [tensor_from_buffer(result, torch_dtype(result.dtype)) for result in results]

    return run


def run_stablehlo(bytecode: bytes, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a StableHLO module, an artifact or UTF-8 text, on xla tensors, on their device.

    Raises as `compiled`.
    """
    return compiled(bytecode, value_of(unwrapped(tensors[0])).recorder.device if tensors else current_recorder().device)(tensors)
