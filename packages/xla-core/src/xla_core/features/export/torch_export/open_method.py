"""A method of an exported module whose arguments have open sizes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.runtime.client import current_recorder, jax_device
from xla_core.engine.runtime.transfer import to_numpy
from xla_core.features.export.stablehlo import artifact, stablehlo_version
from xla_core.features.export.torch_export.meta import InputLocation, Number, StableHLOFunctionMeta, VariableSignature
from xla_core.features.export.torch_export.model_bundle import StableHLOFunc
from xla_core.features.export.torch_export.symbolic import Taken, symbolic_function
from xla_core.features.export.torch_export.traced import State, number, place_of, tensor_named, written_location


@dataclass(frozen=True, slots=True, eq=False)
class OpenInput:
    """A tensor that a graph takes. kept: an argument or a weight; other ones are constants until a method writes to them."""

    location: InputLocation
    tensor: torch.Tensor
    kept: bool


@dataclass(slots=True)
class OpenMethod:
    """A program as functional operations. inputs: for each of its graph's, a tensor or a constant.

    written: what it leaves at arguments and in the state, with the places of its results; returned: the places of those that it returns.
    """

    program: ExportedProgram
    input_spec: str
    output_spec: str | None
    inputs: list[OpenInput | Number] = field(default_factory=list)
    written: list[tuple[InputLocation, int]] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    constant_inputs: list[tuple[int, Number]] = field(default_factory=list)
    constant_outputs: list[tuple[int, Number]] = field(default_factory=list)

    def variables(self, written: set[str]) -> list[OpenInput]:
        """The inputs that are no constants. written: what any method changes of the state."""
        tensors = [each for each in self.inputs if isinstance(each, OpenInput)]
        kept = [each.location for each in tensors if each.kept or each.location.name in written]
        return [each for each in tensors if each.location in kept]


def open_method(exported: ExportedProgram, arguments: Sequence[Any], input_spec: str, output_spec: str | None, state: State) -> OpenMethod:
    """A program with open sizes, over flat example arguments. state: takes its weights, buffers and constants."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of how it copies its pytrees
        method = OpenMethod(exported.run_decompositions(), input_spec, output_spec)
    given = enumerate(arguments)
    for spec in method.program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            _add_argument(method, *next(given))
        elif spec.kind is InputKind.TOKEN:
            method.inputs.append(None)
        else:
            _add_state(method, spec, state)
    _sort_results(method, state)
    return method


def _add_argument(method: OpenMethod, position: int, item: Any) -> None:
    if isinstance(item, torch.Tensor):
        method.inputs.append(OpenInput(InputLocation.input_arg(position), item, kept=True))
        return
    node = method.program.graph.find_nodes(op="placeholder")[len(method.inputs)]
    if isinstance(node.meta.get("val"), torch.SymInt):
        raise UnsupportedOperationError(f"argument {position} is an open number: pass a tensor that has it as a size, or as its value")
    method.constant_inputs.append((position, number(item, f"argument {position}")))
    method.inputs.append(item)


def _add_state(method: OpenMethod, spec: InputSpec, state: State) -> None:
    if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
        raise UnsupportedOperationError(f"{spec.kind.name} inputs cannot be exported: pass tensors and numbers only")
    target, name = str(spec.target), state.name_of_input(method.program, spec)
    method.inputs.append(
        OpenInput(InputLocation.parameter(name), tensor_named(method.program, target), target in method.program.state_dict)
    )


def _sort_results(method: OpenMethod, state: State) -> None:
    signature = method.program.graph_signature
    arguments = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    for place, (spec, item) in enumerate(zip(signature.output_specs, method.program.graph.output_node().args[0], strict=True)):
        if spec.kind is OutputKind.TOKEN:
            continue
        if spec.kind is not OutputKind.USER_OUTPUT:
            method.written.append((written_location(method.program, spec, arguments, state), place))
        elif isinstance(item, fx.Node):
            method.returned.append(place)
        else:
            method.constant_outputs.append((len(method.returned) + len(method.constant_outputs), number(item, "a result")))


def open_function(
    name: str, method: OpenMethod, written: set[str], inline_constants: bool, with_text: bool, constants: list[np.ndarray[Any, Any]]
) -> StableHLOFunc:
    """The method as dynamic StableHLO. written: what any method changes of the state; constants: takes those that stay outside."""
    locations: list[InputLocation] = []
    dtypes: list[torch.dtype] = []
    values: list[Any] = []
    variables = method.variables(written)
    placeholders = method.program.graph.find_nodes(op="placeholder")
    for node, each in zip(placeholders, method.inputs, strict=True):
        if not isinstance(each, OpenInput):
            values.append(each)
        elif each not in variables and inline_constants:
            values.append(each.tensor)
        elif each not in variables:
            values.append(Taken(len(locations)))
            locations.append(InputLocation.constant(place_of(to_numpy(each.tensor), constants)))
            dtypes.append(each.tensor.dtype)
        elif not node.users and not _is_open(node):
            values.append(None)
        elif each.location in locations:
            values.append(Taken(locations.index(each.location)))
        else:
            values.append(Taken(len(locations)))
            locations.append(each.location)
            dtypes.append(each.tensor.dtype)
    places = [*method.returned, *[place for _, place in method.written]]
    found = symbolic_function(method.program, values, places, jax_device(current_recorder()).platform)
    results = [method.program.graph.output_node().args[0][place].meta["val"] for place in places]
    has_constants = bool(method.constant_inputs or method.constant_outputs)
    meta = StableHLOFunctionMeta(
        name=name,
        stablehlo_version=stablehlo_version(),
        input_signature=[VariableSignature.of(shape, dtype) for shape, dtype in zip(found.inputs, dtypes, strict=True)],
        output_signature=[VariableSignature.of(shape, _dtype(noted)) for shape, noted in zip(found.results, results, strict=True)],
        input_locations=locations,
        unused_inputs=[
            (each.location, VariableSignature.of(each.tensor.shape, each.tensor.dtype))
            for each in variables
            if each.location not in locations
        ],
        input_pytree_spec=method.input_spec,
        output_pytree_spec=method.output_spec,
        format_version=2 if method.written or has_constants else 1,
        written=[location for location, _ in method.written],
        constant_inputs=method.constant_inputs,
        constant_outputs=method.constant_outputs,
    )
    return StableHLOFunc(meta, artifact(found.text), found.text if with_text else None)


def _is_open(node: fx.Node) -> bool:
    return any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)


def _dtype(noted: Any) -> torch.dtype:
    """Of a result; a size is one of 64 bits."""
    return noted.dtype if isinstance(noted, torch.Tensor) else torch.int64
