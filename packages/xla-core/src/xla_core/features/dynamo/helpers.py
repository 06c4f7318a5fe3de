"""Small parts of a bridge from FX graphs to programs, for backends that are built of them (`torch_xla._dynamo.dynamo_bridge`)."""

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
        self._places: list[int] | None = None

    def dedup(self, origlist: Sequence[Hashable]) -> list[Any]:
        """The items without repetitions, in order of their first place, which is remembered for `recover`."""
        first: dict[Hashable, int] = {}
        self._places = [first.setdefault(item, len(first)) for item in origlist]
        return list(first)

    def recover(self, deduped_list: Sequence[Any]) -> list[Any]:
        """A list like the one that `dedup` was given, of items that stand for its results. Raises RuntimeError before `dedup`."""
        if self._places is None:
            raise RuntimeError("Deduper.recover puts back what Deduper.dedup took out: call that first")
        return [deduped_list[place] for place in self._places]


class NoneRemover:
    """Takes the Nones out of a list, and puts Nones into another at the same places."""

    def __init__(self) -> None:
        self._places: list[int] = []

    def remove_nones(self, value_list: list[Any]) -> None:
        """Take the Nones out of the list itself, and remember where they were."""
        self._places = [place for place, value in enumerate(value_list) if value is None]
        value_list[:] = [value for value in value_list if value is not None]

    def add_nones(self, value_list: list[Any]) -> None:
        """Put Nones into the list itself, where `remove_nones` found some."""
        for place in self._places:  # ascending: those before are in already
            value_list.insert(place, None)


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
        """The inputs for these arguments: what the graph holds itself is as it was. Raises KeyError for an argument of no known place."""
        places = self.tensor_id_to_arg_idx
        found = []
        for tensor_id, held in zip(self.graph_input_tensor_ids, self.graph_input_xla_values, strict=True):
            known = tensor_id in places or tensor_id in self.xla_args_tensor_id
            found.append(args[places[tensor_id]] if known else held)
        return found


class SpecialReturnHandler:
    """Keeps results away from a program that it need not give, inputs as they are and constants, and puts them back.

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
        places = {id(item): place for place, item in enumerate(trace_inputs) if not trace_inputs_inplace_update_bool[place]}
        constants = {position: value for value, position in constant_outputs_and_indexes}
        self._constants = sorted(constants.items())
        # Positions among all results, constants included, so that both are put back from the front.
        free = (position for position in range(len(trace_outputs) + len(constants)) if position not in constants)
        given = [(position, places.get(id(item))) for position, item in zip(free, trace_outputs, strict=True)]
        self._inputs = [(position, place) for position, place in given if place is not None]
        trace_outputs[:] = [item for item in trace_outputs if id(item) not in places]

    def addDumbReturn(self, real_inputs: Sequence[Any], real_outputs: list[Any]) -> None:
        """Put inputs of a call and constants among the results of the program, in the list itself."""
        special = [(position, real_inputs[place]) for position, place in self._inputs] + self._constants
        for position, value in sorted(special, key=lambda item: item[0]):
            real_outputs.insert(position, value)


class InputCollector(fx.Interpreter):
    """Runs a graph of graphs, and leaves the arguments of each inner one with it, as `xla_args`."""

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call an inner graph, after its arguments were noted."""
        module: Any = self.fetch_attr(target)
        if isinstance(module, fx.GraphModule):
            module.xla_args = args
        return super().call_module(target, args, kwargs)


class XLAConstructorMoverPass:
    """Makes on the XLA device what a traced graph makes on the CPU for operations there: `XLAConstructorMoverPass()(graph)`."""

    def __init__(self) -> None:
        self._pass = private_torch.constructor_mover("xla")
        self._allowed = self._pass.allow_cpu_device
        # A subclass of ours may know better.
        self._pass.allow_cpu_device = self.allow_cpu_device

    def allow_cpu_device(self, node: fx.Node) -> bool:
        """Whether an operation that gives a tensor on the device may take tensors on the CPU."""
        return node.target is torch.ops.aten._to_copy.default or bool(self._allowed(node))

    def __call__(self, graph: fx.Graph) -> None:
        """Change the graph, whose nodes have the fake tensors of tracing as `meta["val"]`."""
        self._pass(graph)
