"""What exporting knows of the methods that it has traced: their inputs, results and writes, and the state that they share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec

from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.graph.pending_graph import Value
from xla_core.engine.runtime.transfer import to_numpy
from xla_core.engine.tensor.interop import alias_key, storage_key
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.values import value_of
from xla_core.features.export.stablehlo import Program, pending_program
from xla_core.features.export.torch_export.meta import InputLocation, Number
from xla_core.features.export.torch_export.model_bundle import StateArray

_WRITES_STATE = {"BUFFER_MUTATION", "PARAMETER_MUTATION"}  # by name: not every torch has both


@dataclass(frozen=True, slots=True)
class TracedInput:
    """A tensor that a graph takes. value: what it was before. kept: an argument or a weight; other ones are constants until written to."""

    location: InputLocation
    tensor: torch.Tensor
    value: Value
    kept: bool


@dataclass(slots=True)
class State:
    """The weights, buffers and constants of all methods, by name; a tensor that has several goes by the first."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[Hashable, str] = field(default_factory=dict)

    def name_of(self, target: str, tensor: torch.Tensor, shared: bool = True) -> str:
        """The name under which a tensor is kept: `target`, unless it has one already.

        shared: raise ValueError where another method has another tensor of that name; else that gets another name.
        """
        key = _key(tensor)
        if key not in self.names:
            if target in self.tensors and shared:
                raise ValueError(f"the methods have different tensors {target!r}: export methods of one module, which share its weights")
            self.names[key] = target if target not in self.tensors else f"{target}_{len(self.tensors)}"
            self.tensors[self.names[key]] = tensor
        return self.names[key]

    def name_of_input(self, exported: ExportedProgram, spec: InputSpec) -> str:
        """`name_of` a weight, buffer or constant that a program takes."""
        target = str(spec.target)
        return self.name_of(target, tensor_named(exported, target), shared=spec.kind is not InputKind.CONSTANT_TENSOR)

    def name_constants(self, exported: ExportedProgram) -> None:
        """Keep a weight that the graph of a program uses as a constant only under the name of the constant.

        Keras reads its variables past the module, so that each is an unused weight and a constant, and it looks for the constants.
        """
        nodes = exported.graph_module.graph.find_nodes(op="placeholder")
        used = [spec for spec, node in zip(exported.graph_signature.input_specs, nodes, strict=True) if node.users]
        weights = {_key(tensor_named(exported, str(spec.target))) for spec in used if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)}
        for spec in used:
            if spec.kind is InputKind.CONSTANT_TENSOR and _key(tensor_named(exported, str(spec.target))) not in weights:
                self.name_of_input(exported, spec)

    def arrays(self, kept: Iterable[str], written: set[str]) -> dict[str, StateArray]:
        """Their values; of those that are written to, copies."""
        for name in written:
            self._refuse_partial(name)
        arrays = {name: to_numpy(self.tensors[name].cpu()) for name in dict.fromkeys(kept)}
        return {name: array.copy() if name in written else array for name, array in arrays.items()}

    def _refuse_partial(self, name: str) -> None:
        memory = _memory(self.tensors[name])
        for other, tensor in self.tensors.items():
            if other != name and _memory(tensor) == memory:
                raise UnsupportedOperationError(f"the program changes {name}, which shares memory with {other}: let it be a copy")


def _memory(tensor: torch.Tensor) -> int:
    """Equal exactly for tensors that share memory."""
    if tensor.device.type == "xla":
        return storage_key(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)


def _key(tensor: torch.Tensor) -> Hashable:
    """Equal exactly for tensors that show the same elements of the same memory."""
    if tensor.device.type == "xla":
        return alias_key(tensor)
    return _memory(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


@dataclass(slots=True)
class Traced:
    """A method on the device. outputs: the tensors among its results; written: what it leaves at arguments and in the state.

    program: computes both, in this order.
    """

    state: State
    input_spec: str
    output_spec: str | None
    inputs: list[TracedInput] = field(default_factory=list)
    outputs: list[torch.Tensor] = field(default_factory=list)
    written: list[tuple[InputLocation, torch.Tensor]] = field(default_factory=list)
    constant_inputs: list[tuple[int, Number]] = field(default_factory=list)
    constant_outputs: list[tuple[int, Number]] = field(default_factory=list)
    program: Program = field(init=False)

    def place_argument(self, position: int, item: Any, device: torch.device) -> Any:
        """An argument as the graph takes it: a tensor on the device, a number as it is."""
        if isinstance(item, torch.Tensor):
            return self._place(InputLocation.input_arg(position), item, device, kept=True)
        self.constant_inputs.append((position, number(item, f"argument {position}")))
        return item

    def place_state(self, exported: ExportedProgram, spec: InputSpec, device: torch.device) -> torch.Tensor:
        """A weight, buffer or constant on the device; one that has two names once."""
        target = str(spec.target)
        tensor = tensor_named(exported, target)
        location = InputLocation.parameter(self.state.name_of_input(exported, spec))
        for known in self.inputs:
            if known.location == location:
                return known.tensor
        return self._place(location, tensor, device, kept=target in exported.state_dict)

    def _place(self, location: InputLocation, tensor: torch.Tensor, device: torch.device, kept: bool) -> torch.Tensor:
        on_device = tensor.detach().cpu().to(device)  # one of the device would be written to itself
        self.inputs.append(TracedInput(location, on_device, value_of(unwrapped(on_device)), kept))
        return on_device

    @property
    def format_version(self) -> int:
        """The lowest form of metas that can describe it."""
        return 2 if self.written or self.constant_inputs or self.constant_outputs or self.program.inputs.seeds else 1

    def variables(self, written: set[str]) -> list[TracedInput]:
        """The inputs that are no constants. written: what any method changes of the state."""
        return [each for each in self.inputs if each.kept or each.location.name in written]

    def take(self, exported: ExportedProgram, results: Sequence[Any], device: torch.device) -> None:
        """Sort the results of the graph, and find what it has written to in place."""
        arguments = [spec.arg.name for spec in exported.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
        for spec, item in zip(exported.graph_signature.output_specs, results, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                self._output(item, device)
            else:
                self.written.append((written_location(exported, spec, arguments, self.state), item))
        known = {location for location, _ in self.written}
        self.written += [
            (each.location, each.tensor)
            for each in self.inputs
            if each.location not in known and value_of(unwrapped(each.tensor)) is not each.value
        ]
        for location, tensor in self.written:
            self._refuse_resized(location, tensor)
        self.program = pending_program([*self.outputs, *[tensor for _, tensor in self.written]])

    def _refuse_resized(self, location: InputLocation, tensor: torch.Tensor) -> None:
        before = next(each.value.aval for each in self.inputs if each.location == location)
        if (tuple(tensor.shape), tensor.dtype) != (before.shape, before.dtype):
            what = location.name or f"argument {location.position}"
            raise UnsupportedOperationError(
                f"the program gives {what} another shape, {list(tensor.shape)}: give that as a result of its own"
            )

    def _output(self, item: Any, device: torch.device) -> None:
        if isinstance(item, torch.Tensor):
            self.outputs.append(item.to(device))
        else:
            self.constant_outputs.append((len(self.outputs) + len(self.constant_outputs), number(item, "a result")))


def written_location(exported: ExportedProgram, spec: OutputSpec, arguments: list[str], state: State) -> InputLocation:
    """Where a result goes that the program does not return. arguments: the names of the graph's inputs that are arguments.

    Raises UnsupportedOperationError for gradients and the like.
    """
    if spec.kind.name in _WRITES_STATE:
        target = str(spec.target)
        return InputLocation.parameter(state.name_of(target, tensor_named(exported, target)))
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return InputLocation.input_arg(arguments.index(str(spec.target)))
    raise UnsupportedOperationError(f"{spec.kind.name} results cannot be exported: export the forward pass alone")


def tensor_named(exported: ExportedProgram, target: str) -> torch.Tensor:
    """The weight, buffer or constant of a program with this name."""
    found: torch.Tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
    return found


def number(item: Any, what: str) -> Number:
    """`item`, which is no tensor; raises UnsupportedOperationError for what the meta of a function cannot say."""
    if item is None or type(item) in (int, float, bool, str):
        return item  # type: ignore[no-any-return]
    raise UnsupportedOperationError(f"{what} is {item!r}: exported programs take and give tensors, numbers, texts and None")


def place_of(array: np.ndarray[Any, Any], constants: list[np.ndarray[Any, Any]]) -> int:
    """The place of an equal array among constants; it is added if there is none."""
    for place, known in enumerate(constants):
        if (known.shape, known.dtype) == (array.shape, array.dtype) and known.tobytes() == array.tobytes():
            return place
    constants.append(array)
    return len(constants) - 1
