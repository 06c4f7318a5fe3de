"""Describes a method of an exported module: a program's inputs, results and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from xla_core.base.errors import UnsupportedOperationError
from xla_core.features.export.torch_export.functional import functional
from xla_core.features.export.torch_export.meta import InputLocation, Number
from xla_core.features.export.torch_export.state import ModuleState, number, tensor_named, written_location


@dataclass(frozen=True, slots=True, eq=False)
class MethodInput:
    """An input tensor of a program. kept: it is an argument or a weight; others are constants unless a method writes to them."""

    location: InputLocation
    tensor: torch.Tensor
    kept: bool


@dataclass(slots=True)
class Method:
    """A program as functional operations. inputs: a tensor or a constant for each input of its graph.

    returned: indices of the returned ones among the graph's results; written: arguments and state that it writes, with indices of the new
    values among the results.
    """

    program: ExportedProgram
    input_spec: str
    output_spec: str | None
    custom_calls: frozenset[str] | set[str]
    inputs: list[MethodInput | Number] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    written: list[tuple[InputLocation, int]] = field(default_factory=list)
    constant_inputs: list[tuple[int, Number]] = field(default_factory=list)

    def variables(self, written: set[str]) -> list[MethodInput]:
        """The inputs that are not constants. written: names of state that any method writes."""
        return [
            method_input
            for method_input in self.inputs
            if isinstance(method_input, MethodInput) and (method_input.kept or method_input.location.name in written)
        ]


def method_of(
    program: ExportedProgram,
    arguments: Sequence[Any],
    input_spec: str,
    output_spec: str | None,
    custom_calls: frozenset[str] | set[str],
    state: ModuleState,
) -> Method:
    """Make a method of a program. arguments: flat examples. state: collects its weights, buffers and constants.

    Raises ValueError for a wrong number of arguments, UnsupportedOperationError for programs that StableHLO cannot express.
    """
    state.take(program)
    count = sum(spec.kind is InputKind.USER_INPUT for spec in program.graph_signature.input_specs)
    if count != len(arguments):
        raise ValueError(f"the exported program takes {count} arguments, flat, and {len(arguments)} are given to trace it with")
    method = Method(functional(program, arguments, custom_calls, state), input_spec, output_spec, custom_calls)
    flat = enumerate(arguments)
    placeholders = method.program.graph.find_nodes(op="placeholder")
    for node, spec in zip(placeholders, method.program.graph_signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            _add_argument(method, node, *next(flat))
        elif spec.kind is InputKind.TOKEN:
            method.inputs.append(None)
        else:
            target = str(spec.target)
            tensor = tensor_named(program, target)
            location = InputLocation.parameter(state.name_of(target, tensor))
            method.inputs.append(MethodInput(location, tensor, target in program.state_dict))
    _sort_results(method, state)
    return method


def _add_argument(method: Method, node: fx.Node, position: int, item: Any) -> None:
    if isinstance(item, torch.Tensor):
        method.inputs.append(MethodInput(InputLocation.input_arg(position), item, kept=True))
        return
    if isinstance(node.meta.get("val"), torch.SymInt):
        raise UnsupportedOperationError(f"argument {position} is an open number: pass a tensor that has it as a size, or as its value")
    method.constant_inputs.append((position, number(item, f"argument {position}")))
    method.inputs.append(item)


def _sort_results(method: Method, state: ModuleState) -> None:
    signature = method.program.graph_signature
    arguments = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    for index, spec in enumerate(signature.output_specs):
        if spec.kind is OutputKind.USER_OUTPUT:
            method.returned.append(index)
        elif spec.kind is not OutputKind.TOKEN:
            method.written.append((written_location(method.program, spec, arguments, state), index))
