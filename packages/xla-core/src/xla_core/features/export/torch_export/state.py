"""The state that methods of an exported module share: weights, buffers and constants by name."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec

from xla_core.base.arrays import to_numpy
from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.tensor.interop import alias_key, storage_key
from xla_core.features.export.torch_export.meta import InputLocation, Number
from xla_core.features.export.torch_export.model_bundle import StateArray

_WRITES_STATE = {"BUFFER_MUTATION", "PARAMETER_MUTATION"}  # as texts: not every torch has both


@dataclass(slots=True)
class ModuleState:
    """The weights, buffers and constants of all methods by name. A tensor with several names has the first."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    names: dict[Hashable, str] = field(default_factory=dict)

    def name_of(self, target: str, tensor: torch.Tensor, shared: bool = True) -> str:
        """The name of a tensor: `target`, unless it has a name already.

        shared: raise ValueError if another method has another tensor of that name; if false, choose another name.
        """
        key = shown_memory(tensor)
        if key not in self.names:
            if target in self.tensors and shared:
                raise ValueError(f"the methods have different tensors {target!r}: export methods of one module, which share its weights")
            self.names[key] = target if target not in self.tensors else f"{target}_{len(self.tensors)}"
            self.tensors[self.names[key]] = tensor
        return self.names[key]

    def take(self, exported: ExportedProgram) -> None:
        """Name the weights, buffers and constants of a program.

        A weight that the graph uses only as a constant has the constant's name: Keras reads its variables without the module, so that each
        is an unused weight and a constant, and Keras looks for the constants.
        """
        nodes = exported.graph.find_nodes(op="placeholder")
        specs = [spec for spec in exported.graph_signature.input_specs if spec.target]
        used = {spec.arg.name for spec, node in zip(exported.graph_signature.input_specs, nodes, strict=True) if node.users}
        memory = {spec.arg.name: shown_memory(tensor_named(exported, str(spec.target))) for spec in specs}
        used_weights = {memory[spec.arg.name] for spec in specs if spec.arg.name in used and not _is_constant(spec)}
        first = [spec for spec in specs if _is_constant(spec) and spec.arg.name in used and memory[spec.arg.name] not in used_weights]
        for spec in [*first, *[spec for spec in specs if spec not in first]]:
            self.name_of(str(spec.target), tensor_named(exported, str(spec.target)), shared=not _is_constant(spec))

    def arrays(self, kept: Iterable[str], written: set[str]) -> dict[str, StateArray]:
        """The arrays of named tensors. Arrays that a method writes are copies."""
        for name in written:
            self.refuse_partial(name)
        arrays = {name: to_numpy(self.tensors[name].cpu()) for name in dict.fromkeys(kept)}
        return {name: array.copy() if name in written else array for name, array in arrays.items()}

    def refuse_partial(self, name: str) -> None:
        """Raise UnsupportedOperationError if a tensor, which is written to, shares memory with another."""
        memory = memory_of(self.tensors[name])
        for other, tensor in self.tensors.items():
            if other != name and memory_of(tensor) == memory:
                raise UnsupportedOperationError(f"the program changes {name}, which shares memory with {other}: let it be a copy")


def _is_constant(spec: InputSpec) -> bool:
    return spec.kind is InputKind.CONSTANT_TENSOR


def memory_of(tensor: torch.Tensor) -> int:
    """A key that is equal exactly for tensors that share memory."""
    if tensor.device.type == "xla":
        return storage_key(tensor)
    return tensor.untyped_storage().data_ptr() or id(tensor)


def shown_memory(tensor: torch.Tensor) -> Hashable:
    """A key that is equal exactly for tensors that show the same elements of the same memory."""
    if tensor.device.type == "xla":
        return alias_key(tensor)
    return memory_of(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def written_location(exported: ExportedProgram, spec: OutputSpec, arguments: list[str], state: ModuleState) -> InputLocation:
    """The location that a result is written to. arguments: names of the graph's inputs that are arguments.

    Raises UnsupportedOperationError for gradients and the like.
    """
    if spec.kind.name in _WRITES_STATE:
        target = str(spec.target)
        return InputLocation.parameter(state.name_of(target, tensor_named(exported, target)))
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return InputLocation.input_arg(arguments.index(str(spec.target)))
    raise UnsupportedOperationError(f"{spec.kind.name} results cannot be exported: export the forward pass alone")


def tensor_named(exported: ExportedProgram, target: str) -> torch.Tensor:
    """The weight, buffer or constant `target` of a program."""
    tensor: torch.Tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
    return tensor


def number(item: Any, subject: str) -> Number:
    """`item` as a number. Raises UnsupportedOperationError for values that a function's meta cannot express."""
    if item is None or type(item) in (int, float, bool, str):
        return item  # type: ignore[no-any-return]
    raise UnsupportedOperationError(f"{subject} is {item!r}: exported programs take and give tensors, numbers, texts and None")


def place_of(array: np.ndarray[Any, Any], constants: list[np.ndarray[Any, Any]]) -> int:
    """The index of an equal array among constants; adds the array if there is none."""
    for index, constant in enumerate(constants):
        if (constant.shape, constant.dtype) == (array.shape, array.dtype) and constant.tobytes() == array.tobytes():
            return index
    constants.append(array)
    return len(constants) - 1
