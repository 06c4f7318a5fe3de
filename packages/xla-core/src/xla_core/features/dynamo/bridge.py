"""Backend `openxla` of `torch.compile`: stock torch hands each FX graph to `extract_compiled_graph`.

A graph is recorded once for each key of its inputs (shapes, dtypes, views, sharing), and then run as one program on the inputs'
buffers. A graph with a CPU fallback or a value read is divided into programs and single operations, or, where that is not safe, recorded
at each call.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from xla_core.base import config, metrics
from xla_core.base.errors import GraphBreakError
from xla_core.base.private_torch import (
    FUNCTION_TRANSFORMS_IN,
    HigherOrderOperator,
    OpOverload,
    has_dispatch_modes,
    hidden_from_modes,
    run_higher_order_on,
    tree_map,
)
from xla_core.engine.graph.text import graph_text
from xla_core.engine.tensor.plain import PLAIN, tensor_behind
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.features.dynamo.capture import NotOneProgram, StandInInterpreter, capture, with_own_pending_graph
from xla_core.features.dynamo.program import RecordedGraph
from xla_core.features.dynamo.program_graph import host_tensor

_logger = logging.getLogger("torch_xla.core.dynamo_bridge")
dynamo_debug = config.DYNAMO_DEBUG.get()
_PLAIN = (bool, int, str, torch.dtype, torch.device, type(None))


def _debug(text: Callable[[], str]) -> None:
    if config.DYNAMO_DEBUG.get():
        _logger.warning("%s", text())


def _input_key(args: Sequence[Any], tensors: Sequence[XLATensor | None]) -> tuple[Any, ...] | None:
    """What a recording depends on besides the data: shapes, dtypes, views, sharing, numbers. None for arguments of unknown types."""
    storages: dict[int, int] = {}
    key: list[Any] = []
    for arg, tensor in zip(args, tensors, strict=True):
        if tensor is not None:
            storage = tensor._storage
            value = storage.value
            key.append((value.recorder, value.aval, tensor._view, storages.setdefault(id(storage), len(storages))))
        elif type(arg) in PLAIN and arg.is_cpu:  # its value is read at each call
            key.append((arg.dtype, arg.shape))
        elif isinstance(arg, float):
            key.append((float, struct.pack("d", arg)))
        elif isinstance(arg, _PLAIN):
            key.append((type(arg), arg))
        else:
            return None
    return tuple(key)


class CompiledGraph(torch.nn.Module):
    """A graph with one program for each key of its arguments. part: it is part of a larger graph, and not divided further."""

    def __init__(self, model: fx.GraphModule, part: bool = False) -> None:
        super().__init__()
        self._model = model
        self._part = part
        self._programs: dict[Any, RecordedGraph | fx.GraphModule] = {}
        self._lock = threading.RLock()
        self._transforms = any(getattr(node.target, "__module__", "") == FUNCTION_TRANSFORMS_IN for node in model.graph.nodes)
        _let_run(model)
        called = [model.get_submodule(node.target) for node in model.graph.nodes if node.op == "call_module"]
        self._called = [inner for module in called for inner in module.modules()]

    def forward(self, *args: Any) -> Any:
        """The graph's results."""
        if has_dispatch_modes():
            with hidden_from_modes():
                return self._run(args)
        return self._run(args)

    def _run(self, args: Sequence[Any]) -> Any:
        tensors = list(map(tensor_behind, args))
        program = self.program(args, tensors)
        return program.run(args, tensors) if isinstance(program, RecordedGraph) else program(*args)

    def program(self, args: Sequence[Any], tensors: Sequence[XLATensor | None]) -> RecordedGraph | fx.GraphModule:
        """The program or module that runs the graph for these arguments. tensors: the xla tensors behind them."""
        key = _input_key(args, tensors)
        needs_grad = torch.is_grad_enabled() and any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        if key is None or needs_grad:
            return self._model
        key += tuple([module.training for module in self._called])
        program = self._programs.get(key)
        if program is None:
            with self._lock:  # threads may come at once
                program = self._programs.get(key) or self._prepare(args)
                self._programs[key] = program
        return program

    def _prepare(self, args: Sequence[Any]) -> RecordedGraph | fx.GraphModule:
        metrics.counter_add("DynamoExtractCompiledGraph")
        if self._transforms:  # of torch.func: a recording that stops halfway would leave them open
            return self._model
        _debug(lambda: f"recording a graph for {[_described(arg) for arg in args]}:\n{self._model.code}")
        try:
            captured = capture(args, lambda stand_ins: StandInInterpreter(self._model, stand_ins).run(*stand_ins.args))
        except NotOneProgram as reason:
            why = str(reason)
            _debug(lambda: f"not one program: {why}")
            return self._model if self._part else partition_fx_graph_for_cpu_fallback(self._model, args)
        _debug(lambda: f"one program:\n{graph_text(captured.graph)}")
        return captured


def _let_run(model: fx.GraphModule) -> None:
    """Let the higher-order operators of a graph and its inner graphs run on xla tensors."""
    for module in model.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            for operator in (node.target, *node.args):  # some take another operator
                if isinstance(operator, HigherOrderOperator):
                    run_higher_order_on(operator, XLATensor)


def _described(arg: Any) -> str:
    return f"{arg.dtype}{list(arg.shape)} on {arg.device}" if isinstance(arg, torch.Tensor) else repr(arg)


def extract_compiled_graph(xla_model: fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """Make a callable that runs `xla_model` as a compiled program, with the same arguments and results.

    xla_args: example arguments, which are not changed. Arguments of other kinds are recorded and compiled when they come.
    A call writes to arguments and returns aliases like the graph, and draws new random numbers. If its arguments require gradients, the
    graph is recorded as usual, without a program.
    """
    graph = CompiledGraph(xla_model)
    graph.program(xla_args, list(map(tensor_behind, xla_args)))
    return graph


class UnsupportedNodesCollector(StandInInterpreter):
    """Finds the operations of a graph that cannot be part of a program, and continues with tensors of the shapes that torch inferred.

    module: the graph. It is run on stand-ins for the arguments: nothing is computed, and nothing written to.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._found: set[fx.Node] = set()

    def run(self, *args: Any, **options: Any) -> None:
        """Search the graph with arguments like these. Raises GraphBreakError where a shape is not known without running it."""
        with with_own_pending_graph(args) as stand_ins:
            super().__init__(self._module, stand_ins)
            super().run(*stand_ins.args, **options)

    def get_unsupported_nodes(self) -> list[fx.Node]:
        """The unsupported operations, in order."""
        return [node for node in self._module.graph.nodes if node in self._found]

    def run_node(self, n: fx.Node) -> Any:
        """Run a node like fx, or return tensors like the results that torch inferred with fake tensors."""
        if n.op == "call_function" and any(node in self._found and _unpacks(n) for node in n.all_input_nodes):
            self._found.add(n)  # unpacking the result of an unsupported operation belongs to it
        try:
            return super().run_node(n)
        except GraphBreakError:
            inferred = n.meta.get("val", n.meta.get("example_value"))
            if inferred is None:
                raise
            self._found.add(n)
            # In a graph that was traced with CPU tensors, all inferred results are on the CPU.
            on_device = "device" not in n.kwargs and any(isinstance(self.env[used], XLATensor) for used in n.all_input_nodes)
            return tree_map(lambda item: self._like(item, on_device), inferred)

    def _like(self, item: Any, on_device: bool) -> Any:
        if not isinstance(item, torch.Tensor):
            return item
        if not all(isinstance(size, int) for size in item.shape):
            raise NotOneProgram("an operation without a lowering gives a tensor of no fixed shape")
        if item.device.type == "cpu" and not on_device:
            return host_tensor(item, 0)  # it will be an argument of a part
        return torch.empty(tuple(item.shape), dtype=item.dtype, device=self.stand_ins.recorder.device)


def _unpacks(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


class _Lowered(OperatorSupportBase):
    """Supports all function calls except those in `unsupported`."""

    def __init__(self, unsupported: Iterable[fx.Node]) -> None:
        self._unsupported = frozenset(unsupported)

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        """Whether the node may be part of a program."""
        return node.op == "call_function" and node not in self._unsupported


def _functional(model: fx.GraphModule) -> bool:
    """Whether no operation writes to its arguments, so that operations may be moved as far as their operands allow."""
    for node in model.graph.nodes:
        if node.op in ("call_module", "call_method"):
            return False
        if node.op == "call_function" and not _unpacks(node):
            target = node.target
            if not isinstance(target, OpOverload) or target._schema.is_mutable:
                return False
    return True


def partition_fx_graph_for_cpu_fallback(
    xla_model: fx.GraphModule, xla_args: Sequence[Any], all_xla_args: Any = None, all_xla_args_tensor_only: Any = None
) -> fx.GraphModule:
    """Make each group of operations with lowerings in `xla_model` one compiled graph; other operations run one by one, on the CPU.

    The last two arguments are accepted for compatibility. A graph that writes to its arguments, or that can only be analyzed by running
    it, is returned unchanged: its operations are then recorded like any other code.
    """
    if not _functional(xla_model):
        return xla_model
    try:
        collector = UnsupportedNodesCollector(xla_model)
        collector.run(*xla_args)
    except GraphBreakError:
        return xla_model
    return _part(xla_model, collector.get_unsupported_nodes())


def _part(model: fx.GraphModule, unsupported: Iterable[fx.Node]) -> fx.GraphModule:
    names = {node.name for node in unsupported}
    parted = fx.GraphModule(model, fx.Graph())
    result = parted.graph.graph_copy(model.graph, {}, return_output_node=False)
    parted.graph.output(result)
    parted.recompile()
    chosen = _Lowered(node for node in parted.graph.nodes if node.name in names)
    partitioner = CapabilityBasedPartitioner(parted, chosen, allows_single_node_partition=True)
    fused: fx.GraphModule = partitioner.partition_and_fuse()
    for name, part in list(fused.named_children()):
        if isinstance(part, fx.GraphModule):
            setattr(fused, name, CompiledGraph(part, part=True))
    _debug(lambda: f"parted:\n{fused.code}")
    return fused
