"""Records an FX graph once, over stand-ins for its inputs, as a program that only needs buffers.

The stand-ins are leaves without a buffer on a pending graph of their own, so that recording touches no real tensor, and reading a value
(a CPU fallback, `.item()`) raises: such a graph is not one program, which `NotOneProgram` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from xla_core.base.errors import GraphBreakError
from xla_core.base.private_torch import HigherOrderOperator, OpOverload, enter_autocast, exit_autocast, tree_flatten
from xla_core.engine.graph.graph import Graph, Inputs, inputs_of
from xla_core.engine.graph.pending_graph import NOBODY, Recorder, Value
from xla_core.engine.graph.selection import ancestors, extract, renamed_lines
from xla_core.engine.runtime import resharding
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.tensor.plain import ours, tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor, view_of
from xla_core.engine.tracing.apart import recording_apart
from xla_core.engine.tracing.origins import Argument, ArgumentItself, Constant, NewStorage, Result, ViewOf
from xla_core.engine.tracing.tokens import stand_in_by
from xla_core.features.dynamo.program import Origin, RecordedGraph
from xla_core.features.dynamo.program_graph import HostTensor, ProgramGraph, host_tensor

_COPIES = (torch.ops.aten.copy.default, torch.ops.aten.copy_.default)
# Higher-order operators with a side effect at each call.
_WITH_EFFECTS = frozenset({"call_torchbind", "invoke_leaf_function", "print", "with_effects"})


class NotOneProgram(GraphBreakError):
    """The graph reads values, or does more than compute on xla tensors."""


class StandIns:
    """One leaf for each input storage, made when the graph first meets it.

    tensors: for each input storage, a real tensor of it: an argument's index, or the tensor itself if the graph holds it.
    """

    def __init__(self, recorder: Recorder, args: Sequence[Any]) -> None:
        self.recorder = recorder
        self.tensors: list[int | XLATensor] = []
        self.storages: list[Storage] = []
        self.leaves: list[Value] = []
        self.held: set[int] = set()  # ids of the graph's own tensors on other devices, which live as long as the graph
        self._numbers: dict[int, int] = {}
        self._shown: list[tuple[XLATensor, Storage, Any]] = []
        self.args = [self._argument(arg, index) for index, arg in enumerate(args)]

    def _argument(self, arg: Any, index: int) -> Any:
        if tensor_behind(arg) is not None:
            return self._of(ours(arg), index)
        return host_tensor(arg, index) if isinstance(arg, torch.Tensor) else arg

    def of(self, tensor: XLATensor) -> XLATensor:
        """The stand-in for a tensor that the graph holds itself."""
        return self._of(tensor, tensor)

    def _of(self, tensor: Any, origin: int | XLATensor) -> XLATensor:
        real = tensor._storage
        index = self._numbers.get(id(real))
        if index is None:
            index = self._numbers[id(real)] = len(self.tensors)
            self.tensors.append(origin)
            self._make(real, index)
        stand_in = view_of(self.storages[index], tensor._view)
        self._shown.append((stand_in, stand_in._storage, stand_in._view))
        return stand_in

    def changed(self) -> bool:
        """Whether `set_`, `t_` or the like made a stand-in show other data, which a program could not do to the real tensor."""
        return any(stand_in._storage is not storage or stand_in._view is not view for stand_in, storage, view in self._shown)

    def _make(self, real: Storage, index: int) -> None:
        pending_graph, aval = self.recorder.pending_graph, real.value.aval
        if real.value.recorder is not self.recorder:
            raise NotOneProgram(f"the graph has inputs on {real.value.recorder.device} and {self.recorder.device}")
        slot = len(pending_graph.entries)
        pending_graph.entries.append(aval)
        pending_graph.refs.append(NOBODY)
        pending_graph.input_data[slot] = Argument(index)
        storage = Storage()
        storage.value = pending_graph.define(self.recorder, slot, aval)
        storage.annotations = real.annotations
        self.storages.append(storage)
        self.leaves.append(storage.value)


class StandInInterpreter(fx.Interpreter):
    """Runs a graph on stand-ins."""

    def __init__(self, model: fx.GraphModule, stand_ins: StandIns) -> None:
        super().__init__(model, garbage_collect_values=True)
        self.stand_ins = stand_ins
        self._autocasts: list[Any] = []

    def run(self, *args: Any, **options: Any) -> Any:
        """Run like fx, but restore grad mode and autocast if the graph cannot be recorded."""
        grad = torch.is_grad_enabled()
        try:
            return super().run(*args, **options)
        except BaseException:
            torch.set_grad_enabled(grad)
            while self._autocasts:
                exit_autocast(self._autocasts.pop())
            raise

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The graph's own attribute; for an xla tensor, a stand-in for its data."""
        attribute = self.fetch_attr(target)
        if isinstance(attribute, torch.nn.Module):
            if not _repeatable(attribute):
                raise NotOneProgram(f"the graph hands the module {target} to an operation, which would not do the same at each call")
            return attribute
        if tensor_behind(attribute) is None:
            self.stand_ins.held.add(id(attribute))
            return attribute
        return self.stand_ins.of(ours(attribute))

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call a module of the graph with stand-ins for its parameters and buffers."""
        module = self.fetch_attr(target)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        ours_of = {name: tensor_behind(tensor) for name, tensor in tensors.items()}
        swapped: dict[str, torch.Tensor] = {name: self.stand_ins.of(tensor) for name, tensor in ours_of.items() if tensor is not None}
        return torch.func.functional_call(module, swapped, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call like fx. Graphs write by copying: a sharding that was set for the source is copied to the target."""
        if isinstance(target, HigherOrderOperator) and target.name() in _WITH_EFFECTS:
            return _without_effect(target, args, kwargs)
        result = super().call_function(target, args, kwargs)
        if target is enter_autocast:
            self._autocasts.append(result)
        elif target is exit_autocast:
            self._autocasts.pop()
        copied = target in _COPIES and type(result) is XLATensor and type(args[1]) is XLATensor
        if copied and resharding.requested_sharding(result._storage) is None:
            resharding.copy_sharding(args[1]._storage, result._storage)
        return result

    def run_node(self, n: fx.Node) -> Any:
        """Run a node like fx. Raises NotOneProgram for results that may differ between calls without being an input."""
        try:
            result = super().run_node(n)
        except GraphBreakError:
            raise
        except Exception as error:
            if any(isinstance(self.env[used], HostTensor) for used in n.all_input_nodes):
                raise NotOneProgram(f"{n.target} takes a tensor on the CPU") from error
            raise
        if n.op in ("call_function", "call_method"):
            for item in tree_flatten(result)[0]:
                on_host = isinstance(item, torch.Tensor) and type(item) is not XLATensor
                if on_host and (isinstance(item, HostTensor) or not _constant(n)):
                    raise NotOneProgram(f"{n.target} computes on the CPU")
        return result


def _repeatable(module: torch.nn.Module) -> bool:
    """Whether a module reads no tensors except its arguments, and has no effects that a program lacks."""
    inner = list(module.modules())
    values = [*module.parameters(), *module.buffers(), *[attribute for submodule in inner for attribute in vars(submodule).values()]]
    nodes = [node for submodule in inner if isinstance(submodule, fx.GraphModule) for node in submodule.graph.nodes]
    return not any(isinstance(item, torch.Tensor) for item in values) and not any(map(_acts, nodes))


def _acts(node: fx.Node) -> bool:
    """Whether an operation has effects, or draws random numbers on the CPU."""
    target, value = node.target, node.meta.get("val")
    if isinstance(target, HigherOrderOperator):
        return target.name() in _WITH_EFFECTS
    seeded = isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
    return seeded and not (isinstance(value, torch.Tensor) and value.device.type == "xla")


def _without_effect(target: Any, args: Any, kwargs: Any) -> Any:
    """Run the check inside an operator with effects: programs have checks of data. Raises NotOneProgram for other effects."""
    if target.name() != "with_effects" or args[1] is not torch.ops.aten._linalg_check_errors.default:
        raise NotOneProgram(f"{args[1] if target.name() == 'with_effects' else target} does more than computing")
    token, check, *operands = args
    return token, check(*operands, **kwargs)


def _constant(node: fx.Node) -> bool:
    """Whether this node's CPU result is the same at each call."""
    target = node.target
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded not in target.tags


def recorder_among(args: Sequence[Any]) -> Recorder:
    """The recorder of the first xla tensor, or the default device's."""
    for arg in args:
        tensor = tensor_behind(arg)
        if tensor is not None:
            return tensor._storage.value.recorder
    return current_recorder()


@contextmanager
def with_own_pending_graph(args: Sequence[Any]) -> Iterator[StandIns]:
    """Record over stand-ins for `args` on an empty pending graph, without running or reading anything.

    Restores the random state of the device and the CPU at the end.
    """
    recorder = recorder_among(args)
    no_reads = "a graph that torch.compile gave to the openxla backend reads a value"
    with torch.random.fork_rng(devices=[]), recording_apart(recorder, ProgramGraph(), no_reads, None):
        # Recording draws seeds that no execution uses.
        seed = recorder.seed
        try:
            stand_ins = StandIns(recorder, args)
            stand_in_by(stand_ins.of)
            yield stand_ins
        finally:
            recorder.seed = seed


def capture(args: Sequence[Any], record: Callable[[StandIns], Any]) -> RecordedGraph:
    """Record `record(stand_ins)` on stand-ins for `args` as a program. Raises NotOneProgram if it does more than recording."""
    grad = torch.is_grad_enabled()
    try:
        with with_own_pending_graph(args) as stand_ins:
            outcome = record(stand_ins)
            if stand_ins.changed():
                raise NotOneProgram("the graph changes what a tensor shows: its data, or its shape in place")
            captured = _GraphOutcome(stand_ins).captured(outcome)
    except NotOneProgram:
        raise
    except GraphBreakError as error:
        raise NotOneProgram(str(error)) from error
    if torch.is_grad_enabled() is not grad:
        torch.set_grad_enabled(grad)
        raise NotOneProgram("the graph leaves another grad mode behind")
    return captured


class _GraphOutcome:
    """Describes the results of a recording."""

    def __init__(self, stand_ins: StandIns) -> None:
        self.pending_graph = stand_ins.recorder.pending_graph
        self.stand_ins = stand_ins
        # Ids are safe as keys, because the stand-ins keep the objects alive.
        self._inputs = {id(storage): index for index, storage in enumerate(stand_ins.storages)}
        self._leaves = {id(value): Argument(index) for index, value in enumerate(stand_ins.leaves)}
        self._holders: dict[int, int] = {}
        self._kept: list[Storage] = []
        self._computed: dict[int, Result] = {}
        self._pending: list[Value] = []

    def captured(self, outcome: Any) -> RecordedGraph:
        """Build the recorded graph."""
        flat, tree = tree_flatten(outcome)
        results = [self._shown(item) for item in flat]
        stand_ins = self.stand_ins
        after = [(index, storage.value) for index, storage in enumerate(stand_ins.storages)]
        written = [(index, self._origin(value)) for index, value in after if value is not stand_ins.leaves[index]]
        holders = [self._origin(storage.value) for storage in self._kept]
        graph, inputs = self._program()
        avals = [value.aval for value in self._pending]
        changed = {index for index, _ in written}
        shardings = (
            [resharding.requested_sharding(storage) if index in changed else None for index, storage in enumerate(stand_ins.storages)],
            [resharding.requested_sharding(storage) for storage in self._kept],
        )
        return RecordedGraph(stand_ins.recorder, graph, inputs, avals, stand_ins.tensors, written, holders, results, tree, shardings)

    def _shown(self, item: Any) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        for position, arg in enumerate(self.stand_ins.args):
            if arg is item:
                return ArgumentItself(position)
        if item.device.type == "cpu" and not item.requires_grad and id(item) not in self.stand_ins.held:
            return Constant(item)
        if type(item) is not XLATensor or item.requires_grad:
            raise NotOneProgram(
                f"the graph returns a tensor on {item.device} that {'needs a gradient' if item.requires_grad else 'is no result of it'}"
            )
        storage = item._storage
        index = self._inputs.get(id(storage))
        if index is not None:
            return ViewOf(Argument(index), item._view)
        index = self._holders.get(id(storage))
        if index is None:
            index = self._holders[id(storage)] = len(self._kept)
            self._kept.append(storage)
        return ViewOf(NewStorage(index), item._view)

    def _origin(self, value: Value) -> Origin:
        """Where a value comes from. A pending value becomes a result of the program."""
        source = self._leaves.get(id(value))
        if source is not None:
            return source
        if value.recorder is not self.stand_ins.recorder:
            raise NotOneProgram(f"the graph computes on {value.recorder.device} as well as on {self.stand_ins.recorder.device}")
        if value.buffer is not None:
            value.pending_graph, value.shared = None, True  # part of every call's results: never donated
            return value
        result = self._computed.get(id(value))
        if result is None:
            self.pending_graph.adopt(value)
            result = self._computed[id(value)] = Result(len(self._pending))
            self._pending.append(value)
        return result

    def _program(self) -> tuple[Graph, Inputs]:
        slots = [value.slot for value in self._pending]
        entries, renamed, input_data = extract(self.pending_graph, ancestors(self.pending_graph, slots))
        graph = Graph(tuple(entries), tuple(renamed[slot] for slot in slots), lines=renamed_lines(self.pending_graph, renamed))
        return graph, inputs_of(entries, input_data)
