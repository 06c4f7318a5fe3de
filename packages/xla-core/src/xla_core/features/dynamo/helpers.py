"""Small building blocks for backends that make programs of FX graphs (`torch_xla._dynamo.dynamo_bridge`)."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from xla_core.base import metrics, private_torch


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on an XLA device."""
    return tensor.device.type == "xla"


def get_fallback_ops() -> list[str]:
    """The operations that have run on the CPU since the counters were cleared, each as `aten::name=count`."""
    counters = metrics.snapshot().counters
    return [f"{name}={count}" for name, count in counters.items() if name.startswith("aten::") and count > 0]


class Deduper:
    """Takes repeated items out of a list, and puts them back."""

    def __init__(self) -> None:
        self._indices: list[int] | None = None

    def dedup(self, origlist: Sequence[Hashable]) -> list[Any]:
        """The distinct items in order of first appearance. Remembers all positions for `recover`."""
        first: dict[Hashable, int] = {}
        self._indices = [first.setdefault(item, len(first)) for item in origlist]
        return list(first)

    def recover(self, deduped_list: Sequence[Any]) -> list[Any]:
        """Expand a list of replacements for the distinct items to the original positions. Raises RuntimeError before `dedup`."""
        if self._indices is None:
            raise RuntimeError("Deduper.recover puts back what Deduper.dedup took out: call that first")
        return [deduped_list[index] for index in self._indices]


class NoneRemover:
    """Removes the Nones from a list, and inserts Nones into another list at the same positions."""

    def __init__(self) -> None:
        self._indices: list[int] = []

    def remove_nones(self, value_list: list[Any]) -> None:
        """Remove the Nones from the list in place, and remember their positions."""
        self._indices = [index for index, value in enumerate(value_list) if value is None]
        value_list[:] = [value for value in value_list if value is not None]

    def add_nones(self, value_list: list[Any]) -> None:
        """Insert Nones into the list in place, at the positions where `remove_nones` found some."""
        for index in self._indices:  # ascending, so that earlier ones are in already
            value_list.insert(index, None)


class GraphInputMatcher:
    """Finds the inputs of a program among the arguments of a call.

    tensor_id_to_arg_idx: the positions of arguments by the ids that their tensors had while the graph was recorded.
    graph_input_tensor_ids, graph_input_xla_values: id and tensor of each input then. xla_args_tensor_id: the ids of all arguments.
    """

    def __init__(
        self,
        tensor_id_to_arg_idx: Mapping[int, int],
        graph_input_tensor_ids: Sequence[int],
        graph_input_xla_values: Sequence[Any],
        xla_args_tensor_id: Collection[int],
    ) -> None:
        self.tensor_id_to_arg_idx = tensor_id_to_arg_idx
        self.graph_input_tensor_ids = graph_input_tensor_ids
        self.graph_input_xla_values = graph_input_xla_values
        self.xla_args_tensor_id = xla_args_tensor_id

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The inputs for these arguments, with the graph's own tensors unchanged. Raises KeyError for an argument of unknown position."""
        positions = self.tensor_id_to_arg_idx
        inputs = []
        for tensor_id, value in zip(self.graph_input_tensor_ids, self.graph_input_xla_values, strict=True):
            is_argument = tensor_id in positions or tensor_id in self.xla_args_tensor_id
            inputs.append(args[positions[tensor_id]] if is_argument else value)
        return inputs


class SpecialReturnHandler:
    """Removes results that a program need not compute, unchanged inputs and constants, and inserts them again.

    trace_inputs, trace_outputs: of the recorded graph; the outputs that are inputs are taken out of the list `trace_outputs` itself,
    but for those of `trace_inputs_inplace_update_bool` (for each input, whether the graph writes to it), which the program computes.
    constant_outputs_and_indexes: pairs (value, position among all results) of what is the same at each call, and in no list.
    """

    def __init__(
        self,
        trace_inputs: Sequence[Any],
        trace_outputs: list[Any],
        trace_inputs_inplace_update_bool: Sequence[bool],
        constant_outputs_and_indexes: Sequence[tuple[Any, int]],
    ) -> None:
        indices = {id(item): index for index, item in enumerate(trace_inputs) if not trace_inputs_inplace_update_bool[index]}
        constants = {position: value for value, position in constant_outputs_and_indexes}
        self._constants = sorted(constants.items())
        # Positions among all results including constants, so that both are inserted from the front.
        free = (position for position in range(len(trace_outputs) + len(constants)) if position not in constants)
        pairs = [(position, indices.get(id(item))) for position, item in zip(free, trace_outputs, strict=True)]
        self._inputs = [(position, index) for position, index in pairs if index is not None]
        trace_outputs[:] = [item for item in trace_outputs if id(item) not in indices]

    def addDumbReturn(self, real_inputs: Sequence[Any], real_outputs: list[Any]) -> None:
        """Insert inputs of a call and constants into the list of the program's results, in place."""
        special = [(position, real_inputs[index]) for position, index in self._inputs] + self._constants
        for position, value in sorted(special, key=lambda item: item[0]):
            real_outputs.insert(position, value)


class InputCollector(fx.Interpreter):
    """Runs a graph of graphs, and stores the arguments of each inner graph on it as `xla_args`."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Store an inner graph's arguments, and call it."""
        module: Any = self.fetch_attr(target)
        if isinstance(module, fx.GraphModule):
            module.xla_args = args
        return super().call_module(target, args, kwargs)


class XLAConstructorMoverPass:
    """Moves tensor constructors of a traced graph from the CPU to the XLA device that uses them: `XLAConstructorMoverPass()(graph)`."""

    def __init__(self) -> None:
        self._pass = private_torch.constructor_mover("xla")
        self._allowed = self._pass.allow_cpu_device
        # A subclass may override it.
        self._pass.allow_cpu_device = self.allow_cpu_device

    def allow_cpu_device(self, node: fx.Node) -> bool:
        """Whether an operation with a result on the device may take CPU tensors."""
        return node.target is torch.ops.aten._to_copy.default or bool(self._allowed(node))

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph, whose nodes have the fake tensors of tracing as `meta["val"]`."""
        self._pass(graph)
