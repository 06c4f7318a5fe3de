"""Lowers a method to a StableHLO function, with a signature that says where its inputs come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base.arrays import to_numpy
from xla_core.base.errors import UnsupportedOperationError, XlaError
from xla_core.base.private_jax import lowering_platform
from xla_core.engine.compile.compiler import source_scope
from xla_core.engine.compile.emit import Constants, arrays_of, program
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.graph import Graph, Inputs, inputs_of
from xla_core.engine.graph.selection import ancestors, extract
from xla_core.engine.runtime.client import current_recorder, jax_device
from xla_core.features.export.stablehlo import artifact, bytes_of, for_readers, lowered, stablehlo_version, text_of
from xla_core.features.export.torch_export.interpreter import GraphInterpreter
from xla_core.features.export.torch_export.lowerings import EqualSizes
from xla_core.features.export.torch_export.meta import InputLocation, Number, StableHLOFunctionMeta, VariableSignature
from xla_core.features.export.torch_export.method import Method, MethodInput
from xla_core.features.export.torch_export.model_bundle import StableHLOFunc
from xla_core.features.export.torch_export.options import StableHLOExportOptions
from xla_core.features.export.torch_export.recorded_node import ValueSlot, leaf
from xla_core.features.export.torch_export.state import number, place_of
from xla_core.features.export.torch_export.symbolic_dims import SymbolicDims, symbolic_dims
from xla_core.ops.axes import is_open
from xla_core.ops.table import Context

_OPEN = -1  # the size of an open dimension in signatures


def function_of(
    name: str, method: Method, written: set[str], options: StableHLOExportOptions, constants: list[np.ndarray[Any, Any]]
) -> StableHLOFunc:
    """Export a method as StableHLO. written: names of state that any method writes; constants: collects those outside of the module.

    Raises UnsupportedOperationError for operations that need fixed sizes where the program leaves them open.
    """
    equalities: list[str] = []
    while True:
        try:
            graph = _interpreted(method, symbolic_dims(method.program, equalities))
            return _lowered(name, method, graph, written, options, constants)
        except EqualSizes as sizes:
            # Add a constraint, which the module asserts.
            if sizes.constraint in equalities:
                raise
            equalities.append(sizes.constraint)


@dataclass(frozen=True, slots=True)
class _MethodGraph:
    """A method as a graph. Its results are the returned tensors, then the written ones.

    inputs: sources of its leaves. constant_outputs: returned values that are not tensors, by index.
    """

    graph: Graph
    inputs: Inputs
    constant_outputs: list[tuple[int, Number]]
    has_open_sizes: bool

    @property
    def leaves(self) -> list[tuple[Aval, Any]]:
        """The avals of input tensors with their sources: inputs of the method, and constants."""
        return list(zip((entry for entry in self.graph.entries if type(entry) is Aval), self.inputs.buffers, strict=True))

    @property
    def results(self) -> list[Aval]:
        """The avals of its results."""
        return [aval for aval in self.graph.parts.results if aval is not None]


def _interpreted(method: Method, dims: SymbolicDims) -> _MethodGraph:
    interpreter = GraphInterpreter(method.program.graph_module, dims, method.custom_calls)
    graph = interpreter.recorded
    values = [
        leaf(graph, interpreter.aval(node.meta["val"]), method_input) if isinstance(method_input, MethodInput) else method_input
        for node, method_input in zip(method.program.graph.find_nodes(op="placeholder"), method.inputs, strict=True)
    ]
    outputs = interpreter.run(*values, enable_io_processing=False)
    results: list[int] = []
    constant_outputs: list[tuple[int, Number]] = []
    for position, number_of_output in enumerate(method.returned):
        value = outputs[number_of_output]
        value = interpreter.size(value) if is_open(value) else value
        if isinstance(value, ValueSlot):
            results.append(value.number)
        else:
            constant_outputs.append((position, number(value, "a result")))
    results.extend(_written(method, values, location, outputs[number_of_output]) for location, number_of_output in method.written)
    # Inputs with open sizes stay, because they tell the sizes.
    open_leaves = [value.number for value in values if isinstance(value, ValueSlot) and any(map(is_open, value.aval.shape))]
    entries, renamed, data = extract(graph, sorted({*ancestors(graph, results), *open_leaves}))
    result_graph = Graph(tuple(entries), tuple(renamed[slot] for slot in results))
    return _MethodGraph(result_graph, inputs_of(entries, data), constant_outputs, bool(dims.by_symbol))


def _written(method: Method, values: Sequence[Any], location: InputLocation, result: ValueSlot) -> int:
    """The slot of the value that a method writes to an input. Raises UnsupportedOperationError if it has another shape or dtype."""
    before = next(
        value.aval
        for method_input, value in zip(method.inputs, values, strict=True)
        if isinstance(method_input, MethodInput) and method_input.location == location
    )
    if (result.aval.shape, result.aval.dtype) != (before.shape, before.dtype):
        name = location.name or f"argument {location.position}"
        raise UnsupportedOperationError(
            f"the program gives {name} another shape, {list(result.aval.shape)}: give that as a result of its own"
        )
    return result.number


def _lowered(
    name: str,
    method: Method,
    method_graph: _MethodGraph,
    written: set[str],
    options: StableHLOExportOptions,
    constants: list[np.ndarray[Any, Any]],
) -> StableHLOFunc:
    variables = method.variables(written)
    locations: list[InputLocation] = []
    signatures: list[VariableSignature] = []
    structs: list[jax.ShapeDtypeStruct] = []
    values: list[np.ndarray[Any, Any] | None] = []  # of leaves that become constants of the module; None for inputs
    for aval, source in method_graph.leaves:
        is_variable = isinstance(source, MethodInput) and source in variables
        values.append(_array(source) if not is_variable and options.inline_all_constant else None)
        if values[-1] is None:
            locations.append(source.location if is_variable else InputLocation.constant(place_of(_array(source), constants)))
            signatures.append(_signature(aval))
            structs.append(aval.struct)
    if method_graph.inputs.seeds:
        locations.append(InputLocation.seeds())
        signatures.append(VariableSignature([len(method_graph.inputs.seeds), 2], "uint32"))
        structs.append(jax.ShapeDtypeStruct((len(method_graph.inputs.seeds), 2), np.uint32))
    main = _function(method_graph, values, written)
    with_text = options.include_human_readable_text
    code, text = _with_open_sizes(main, structs) if method_graph.has_open_sizes else _with_fixed_sizes(main, structs, with_text)
    needs_second_form = method.written or method.constant_inputs or method_graph.constant_outputs or method_graph.inputs.seeds
    meta = StableHLOFunctionMeta(
        name=name,
        stablehlo_version=stablehlo_version(),
        input_signature=signatures,
        output_signature=[_signature(aval) for aval in method_graph.results],
        input_locations=locations,
        unused_inputs=[
            (variable.location, VariableSignature.of(variable.tensor.shape, variable.tensor.dtype))
            for variable in variables
            if variable.location not in locations
        ],
        input_pytree_spec=method.input_spec,
        output_pytree_spec=method.output_spec,
        format_version=2 if needs_second_form else 1,
        written=[location for location, _ in method.written],
        constant_inputs=method.constant_inputs,
        constant_outputs=method_graph.constant_outputs,
    )
    return StableHLOFunc(meta, code, text if with_text else None)


def _array(source: Any) -> np.ndarray[Any, Any]:
    """The array of a leaf's source."""
    tensor = source.tensor if isinstance(source, MethodInput) else source
    return to_numpy(tensor.detach().cpu()) if isinstance(tensor, torch.Tensor) else np.asarray(tensor)


def _signature(aval: Aval) -> VariableSignature:
    return VariableSignature.of([_OPEN if is_open(size) else size for size in aval.shape], aval.dtype)


def _function(
    method_graph: _MethodGraph, values: Sequence[np.ndarray[Any, Any] | None], written: set[str]
) -> Callable[..., tuple[jax.Array, ...]]:
    """The graph as a function of the leaves whose value is None, and of seeds."""
    inputs, graph = method_graph.inputs, method_graph.graph
    if not method_graph.has_open_sizes:  # JAX has no composites with open sizes
        graph = for_readers(graph, lambda number: _constant_value(inputs.buffers[number], written))
    constants = Constants(tuple(inputs.fixed_floats), tuple(inputs.fixed_ints))
    emit = program(graph, constants, Context((), platform=jax_device(current_recorder()).platform), source_scope)
    numbers = arrays_of(inputs.floats, inputs.ints, [])

    def main(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        remaining = iter(arrays)
        leaves = [
            next(remaining) if value is None else jax.numpy.asarray(value.astype(aval.physical))
            for value, (aval, _) in zip(values, method_graph.leaves, strict=True)
        ]
        return emit(*leaves, *map(jax.numpy.asarray, numbers), *remaining)[:-1]  # without the token

    return main


def _constant_value(source: Any, written: set[str]) -> np.ndarray[Any, Any] | None:
    """The value of a leaf that is the same at each call; None for other leaves."""
    if isinstance(source, MethodInput) and (source.location.name in written or not source.location.name):
        return None
    return _array(source)


def _with_fixed_sizes(main: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct], with_text: bool) -> tuple[bytes, str]:
    stage = lowered(main, structs, jax_device(current_recorder()))
    return bytes_of(stage), text_of(stage) if with_text else ""


def _with_open_sizes(main: Callable[..., Any], structs: Sequence[jax.ShapeDtypeStruct]) -> tuple[bytes, str]:
    """Export dynamic StableHLO, with JAX's shape polymorphism."""
    platform = lowering_platform(jax_device(current_recorder()))
    try:
        with jax.enable_x64(True):
            text = str(jax.export.export(jax.jit(main, keep_unused=True), platforms=(platform,))(*structs).mlir_module())
    except XlaError:
        raise
    except (ValueError, TypeError, NotImplementedError) as error:  # of JAX, after tracing
        reason = str(error).partition("\n")[0]
        raise UnsupportedOperationError(f"the program cannot be exported with open sizes: {reason}") from error
    return artifact(text), text
