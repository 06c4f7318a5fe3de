"""Turns an exported program's functional graph into a graph of recorded operations, by the op table. Sizes may stay open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import jax
import torch
from torch import fx

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import HigherOrderOperator, OpOverload, tree_flatten, tree_leaves, tree_map, tree_unflatten
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.entries import SEED
from xla_core.engine.graph.pending_graph import PendingGraph
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.tensor.schema import Convention, calling, dotted_name, full_name
from xla_core.features.export.custom_call import caller
from xla_core.features.export.torch_export.constants import constant_of
from xla_core.features.export.torch_export.device_interpreter import becomes_custom_call
from xla_core.features.export.torch_export.lowerings import lowering_of, number_of_sizes, over_open_sizes
from xla_core.features.export.torch_export.recorded_node import ValueSlot, leaf, record_node, slot_at
from xla_core.features.export.torch_export.symbolic_dims import SymbolicDims
from xla_core.ops.axes import is_open
from xla_core.ops.table import TABLE, Lowering

aten = torch.ops.aten
_PLACEMENT = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"})
_CHECKS = (aten._linalg_check_errors.default, aten._assert_async.msg)  # checks of data: exported programs do not raise
# Torch notes the results of the CPU kernel, which are empty tensors where its gradient does not need them.
_LESS_ON_CPU = frozenset({"aten::_embedding_bag", "aten::_embedding_bag_forward_only"})
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class GraphInterpreter(fx.Interpreter):
    """Runs a functional graph of `torch.export` on slots of a graph of recorded operations, to which it adds an operation for each node.

    dims: JAX's dimension for each open size. custom_calls: namespaces, or names, of operations that become custom calls.
    """

    def __init__(self, module: fx.GraphModule, dims: SymbolicDims, custom_calls: frozenset[str] | set[str]) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.recorded = PendingGraph()
        self._dims = dims
        self._custom_calls = custom_calls
        self._seeds = count()

    def aval(self, tensor: torch.Tensor) -> Aval:
        """The aval of a tensor that torch noted."""
        shape = self._dims.shape(tensor.shape)
        return Aval(shape, tensor.dtype) if any(map(is_open, shape)) else aval_of(shape, tensor.dtype)

    def run_node(self, n: fx.Node) -> Any:
        """The value of a node: a slot, a nesting of them, a number or a symbolic dimension."""
        if n.op != "call_function":
            return super().run_node(n)
        target: Any = n.target
        noted = n.meta.get("val")
        if isinstance(noted, torch.SymInt) or type(noted) is int:
            return self._dims.of(noted)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if isinstance(noted, torch.SymFloat):
            return self._append(n, partial(number_of_sizes, target), args, {}, (aval_of((), torch.float64),))[0]
        if isinstance(target, OpOverload):
            return self._operation(n, target, args, kwargs)
        if target is torch.ops.higher_order.with_effects and args[1] in _CHECKS:
            return (None,)  # a token
        if isinstance(target, HigherOrderOperator):
            return self._recorded(n, args, kwargs)
        return target(*args, **kwargs)  # a Python function, such as getitem of several results

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """A constant of the graph as a leaf, or the module of a branch."""
        attribute = super().get_attr(target, args, kwargs)
        return leaf(self.recorded, self.aval(attribute), attribute) if isinstance(attribute, torch.Tensor) else attribute

    def size(self, dim: Any) -> ValueSlot:
        """Record an open size as a tensor."""
        signature = Signature("xla.size", lambda context: jax.numpy.asarray(dim, context.dtype), (), {}, (aval_of((), torch.int64),))
        return slot_at(self.recorded, self.recorded.append(signature, []))

    def _operation(self, n: fx.Node, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        noted = n.meta.get("val")
        if noted is None:
            return None  # an assertion: those about sizes are constraints of the program
        constant = constant_of(target, args)
        if constant is not None:
            return leaf(self.recorded, self.aval(constant), constant)
        flat, nesting = tree_flatten(noted)
        avals = tuple(None if tensor is None else self.aval(tensor) for tensor in flat)
        if becomes_custom_call(target, self._custom_calls):
            tensors = tuple(item for item in tree_leaves((args, kwargs)) if isinstance(item, ValueSlot))
            call = caller(target._schema.name, tuple(aval.struct for aval in avals if aval is not None))
            return tree_unflatten(self._append(n, lambda context, *arrays: call(*arrays), tensors, {}, avals), nesting)
        results = self._by_lowering(n, target, args, kwargs, avals)
        return self._recorded(n, args, kwargs) if results is None else tree_unflatten(results, nesting)

    def _by_lowering(
        self, n: fx.Node, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], avals: tuple[Aval | None, ...]
    ) -> list[Any] | None:
        """Record an operation by its lowering. None if it has no lowering for these arguments."""
        lower, row = lowering_of(target), TABLE.get(full_name(target))
        if row is not None and row.accepts is not None:
            noted_args, noted_kwargs = fx.map_arg((n.args, n.kwargs), lambda node: node.meta["val"])
            lower = lower if row.accepts(*noted_args, **noted_kwargs) else None
        has_open_sizes = self._has_open_sizes(n)
        if lower is None or (full_name(target) in _LESS_ON_CPU and not has_open_sizes):
            return None
        is_random = row is not None and row.random
        if has_open_sizes:
            if is_random:
                raise UnsupportedOperationError(
                    f"{target} draws random numbers of open sizes: pass them as an argument, or export in eval() mode"
                )
            lower = over_open_sizes(target, lower)
        if target is aten.as_strided.default:
            args = (self._base_of_view(n), *args[1:])
        kwargs = {name: value for name, value in kwargs.items() if name not in _PLACEMENT}
        return self._append(n, lower, args, kwargs, avals, is_random)

    def _recorded(self, n: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._has_open_sizes(n):
            raise UnsupportedOperationError(f"{n.target} cannot be exported with open sizes: it has no lowering of its own")
        return record_node(self.recorded, n.target, args, kwargs, self._custom_calls)

    def _has_open_sizes(self, n: fx.Node) -> bool:
        return any(isinstance(size, torch.SymInt) for node in (n, *n.all_input_nodes) for size in _sizes(node.meta.get("val")))

    def _base_of_view(self, n: fx.Node) -> ValueSlot:
        """The tensor whose memory `as_strided` indexes: the base of the view that it is called on."""
        node = n.all_input_nodes[0]
        while isinstance(node.target, OpOverload) and calling(node.target).convention is Convention.VIEW:
            node = node.all_input_nodes[0]
        noted = node.meta["val"]
        if not isinstance(noted, torch.Tensor) or not noted.is_contiguous():
            raise UnsupportedOperationError("as_strided of a tensor that is not contiguous cannot be exported: call clone() first")
        base: ValueSlot = self.env[node]
        return base

    def _append(
        self,
        n: fx.Node,
        lower: Lowering,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        avals: tuple[Aval | None, ...],
        is_random: bool = False,
    ) -> list[ValueSlot | None]:
        """Append an operation to the graph, and return its results."""
        slots = [item.number for item in tree_leaves((args, kwargs)) if isinstance(item, ValueSlot)]
        if is_random:
            slots.append(self.recorded.add_scalar(SEED, next(self._seeds)))
        args, kwargs = tree_map(lambda item: PLACEHOLDER if isinstance(item, ValueSlot) else item, (args, kwargs))
        target: Any = n.target
        name, row = (dotted_name(target), full_name(target)) if isinstance(target, OpOverload) else (target.__name__, "")
        signature = Signature(name, lower, args, kwargs, avals, random=is_random, line=_line(n), target=row)
        first = self.recorded.append(signature, slots)
        return [None if aval is None else ValueSlot(first + index, aval) for index, aval in enumerate(avals)]


def _sizes(noted: Any) -> Iterator[Any]:
    for item in tree_leaves(noted):
        yield from item.shape if isinstance(item, torch.Tensor) else (item,)


def _line(n: fx.Node) -> str | None:
    """The user's `file:line` of a node."""
    frames = _FRAME.findall(n.stack_trace or "")
    return ":".join(frames[-1]) if frames else None
