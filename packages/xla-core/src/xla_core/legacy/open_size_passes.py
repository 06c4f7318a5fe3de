"""Passes over FX graphs of programs with open sizes: they replace operations that many readers of StableHLO lack by simpler ones.

The exporter itself needs none of them. Each changes a graph in place, keeps what it computes, and notes in `meta["val"]` what new
nodes give.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.fx.proxy import GraphAppendingTracer

from xla_core.features.export.torch_export.symbolic_dims import open_symbols
from xla_core.legacy.dynamic_reshape import EXPAND, VIEW

aten = torch.ops.aten
_LAST = (1 << 63) - 1  # where `x[i:]` ends


def exported_program_has_symbolic_input_shape(ep: ExportedProgram) -> bool:
    """Whether inputs of a program have open sizes."""
    return bool(open_symbols(ep))


def process_exported_program_with_symbolic_input(ep: ExportedProgram) -> None:
    """All passes of this module over a program's graph, in place. Does nothing for a program of fixed sizes."""
    if not exported_program_has_symbolic_input_shape(ep):
        return
    before = [getattr(item, "name", None) for item in ep.graph.output_node().args[0]]
    for transform in _PASSES:
        transform(ep.graph_module)
    for old, new in zip(before, ep.graph.output_node().args[0], strict=True):
        if old is not None and old != new.name:
            ep.graph_signature.replace_all_uses(old, new.name)


def wrap_func_as_nn_module(f: Callable[..., Any]) -> nn.Module:
    """A module that calls a function."""

    class Wrapped(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return f(*args, **kwargs)

    return Wrapped()


def call_function(
    graph: fx.Graph, target: Callable[..., Any], args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None, val: Any = None
) -> fx.Node:
    """Add a node that calls `target`. val: its value as tracers note it; computed from the notes of its arguments if not given."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = _noted(node) if val is None else val
    return node


def native_layer_norm_impl(
    input: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[Any, Any, Any]:
    """Layer norm of means and products: (result, mean, inverse standard deviation)."""
    dims = list(range(-len(normalized_shape), 0))
    result, mean, inverse = _normalized(input, dims, eps)
    return _scaled(result, weight, bias), mean, inverse


def native_layer_norm_pattern(x: torch.Tensor, dim: Sequence[int], weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Any:
    """The operation that `native_layer_norm_impl` stands for."""
    return aten.native_layer_norm.default(x, dim, weight, bias, eps)


def native_group_norm_impl(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Any, Any, Any]:
    """Group norm of means and products: (result, mean, inverse standard deviation), the latter two as (N, group)."""
    result, mean, inverse = _normalized(aten.view.default(input, [N, group, C // group, HxW]), [2, 3], eps)
    per_channel = aten.view.default(result, [N, C, HxW])
    weight, bias = (None if tensor is None else aten.unsqueeze.default(tensor, 1) for tensor in (weight, bias))
    shape = [aten.sym_size.int(input, dim) for dim in range(_rank(input))]
    scaled = aten.view.default(_scaled(per_channel, weight, bias), shape)
    return scaled, aten.view.default(mean, [N, group]), aten.view.default(inverse, [N, group])


def native_group_norm_pattern(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    """The operation that `native_group_norm_impl` stands for."""
    return aten.native_group_norm.default(x, weight, bias, N, C, HxW, group, eps)


def _rank(tensor: Any) -> int:
    return int(tensor.node.meta["val"].ndim if isinstance(tensor, fx.Proxy) else tensor.ndim)


def _normalized(x: Any, dims: list[int], eps: float) -> tuple[Any, Any, Any]:
    mean = aten.mean.dim(x, dims, True)
    centred = aten.sub.Tensor(x, mean)
    inverse = aten.rsqrt.default(aten.add.Scalar(aten.mean.dim(aten.mul.Tensor(centred, centred), dims, True), eps))
    return aten.mul.Tensor(centred, inverse), mean, inverse


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else aten.mul.Tensor(x, weight)
    return x if bias is None else aten.add.Tensor(x, bias)


def decompose_dynamic_native_layer_norm(gm: fx.GraphModule) -> None:
    """Replace layer norm over open sizes by means and products."""
    _decompose(gm, aten.native_layer_norm.default, native_layer_norm_impl)


def decompose_dynamic_native_group_norm(gm: fx.GraphModule) -> None:
    """Replace group norm over open sizes by means and products."""
    _decompose(gm, aten.native_group_norm.default, native_group_norm_impl)


def decompose_split_with_sizes(gm: fx.GraphModule) -> None:
    """Replace splits by slices."""

    def parts(x: Any, sizes: Sequence[Any], dim: int = 0) -> tuple[Any, ...]:
        begin, slices = 0, []
        for size in sizes:
            slices.append(aten.slice.Tensor(x, dim, begin, begin + size))
            begin = begin + size
        return tuple(slices)

    _decompose(gm, aten.split_with_sizes.default, parts, always=True)


def decompose_dynamic_shape_select(gm: fx.GraphModule) -> None:
    """Replace a select from open sizes by a slice of one element without its dimension."""

    def part(x: Any, dim: int, index: int) -> Any:
        return aten.squeeze.dim(aten.slice.Tensor(x, dim, index, _LAST if index == -1 else index + 1), dim)

    _decompose(gm, aten.select.int, part)


def dynamic_unsqueeze_to_view(gm: fx.GraphModule) -> None:
    """Replace an unsqueeze of open sizes by a view."""

    def viewed(x: Any, dim: int) -> Any:
        shape = [aten.sym_size.int(x, axis) for axis in range(_rank(x))]
        shape.insert(dim % (len(shape) + 1), 1)
        return aten.view.default(x, shape)

    _decompose(gm, aten.unsqueeze.default, viewed)


def flatten_embedding_indices_tensor(gm: fx.GraphModule) -> None:
    """Look embeddings up by a flat list of indices, whatever the shape of the tensor of indices."""

    def looked_up(weight: Any, indices: Any, *rest: Any) -> Any:
        shape = [aten.sym_size.int(indices, dim) for dim in range(_rank(indices))]
        rows = aten.embedding.default(weight, aten.view.default(indices, [-1]), *rest)
        return aten.view.default(rows, [*shape, aten.sym_size.int(weight, 1)])

    for node in gm.graph.find_nodes(op="call_function", target=aten.embedding.default):
        if node.args[1].meta["val"].ndim != 1:
            _inline(node, looked_up)
    _finish(gm)


def remove_no_op_slice(gm: fx.GraphModule) -> None:
    """Remove slices that take all elements."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.slice.Tensor):
        slice_args = list(node.args[2:])
        start, end, step = slice_args + [None, None, 1][len(slice_args) :]
        if start in (None, 0) and end in (None, _LAST) and step == 1:
            node.replace_all_uses_with(node.args[0])
    _finish(gm)


def replace_dynamic_expand_with_xla_op(gm: fx.GraphModule) -> None:
    """Replace an expansion in which one size is another tensor's by `xla::dynamic_expand`."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.expand.default):
        open_size = _size_of_another(node.args[1])
        if open_size is not None and open_size.factor == 1:
            _replace(node, EXPAND, (*node.args[:2], open_size.source, open_size.dim, open_size.place))
    _finish(gm)


def replace_dynamic_view_with_xla_op(gm: fx.GraphModule) -> None:
    """Replace a view in which one size is a multiple of another tensor's by `xla::dynamic_view`."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.view.default):
        open_size = _size_of_another(node.args[1])
        if open_size is not None:
            _replace(node, VIEW, (*node.args[:2], open_size.source, open_size.dim, open_size.place, open_size.factor))
    _finish(gm)


@dataclass(frozen=True, slots=True)
class _SizeOfAnother:
    """Entry `place` of a shape: `factor` times the size of `source` along `dim`."""

    place: int
    source: fx.Node
    dim: int
    factor: int


def _size_of_another(sizes: Sequence[Any]) -> _SizeOfAnother | None:
    """The only open entry of a shape, if it is the size of a tensor or a multiple of one."""
    open_entries = [(index, size) for index, size in enumerate(sizes) if isinstance(size, fx.Node)]
    if len(open_entries) != 1:
        return None
    index, size = open_entries[0]
    factor, source = 1, size
    if size.target is operator.mul:
        factor = next((arg for arg in size.args if isinstance(arg, int)), 1)
        source = next(arg for arg in size.args if isinstance(arg, fx.Node))
    if source.target is not aten.sym_size.int or (source is not size and factor == 1):
        return None
    tensor, dim = source.args
    return _SizeOfAnother(index, cast(fx.Node, tensor), cast(int, dim), factor)


def _decompose(gm: fx.GraphModule, target: Any, function: Callable[..., Any], always: bool = False) -> None:
    """Replace calls of `target` by the operations of `function`, where sizes are open or always."""
    for node in gm.graph.find_nodes(op="call_function", target=target):
        if always or _is_open(node.args[0]):
            _inline(node, function)
    _finish(gm)


def _is_open(node: Any) -> bool:
    return any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)


def _inline(node: fx.Node, function: Callable[..., Any]) -> None:
    """Replace a node by the operations of `function`, or each of its results if it has several."""
    graph = node.graph
    existing = set(graph.nodes)
    with graph.inserting_before(node):
        tracer = GraphAppendingTracer(graph)
        args, kwargs = _mapped(node, lambda argument: fx.Proxy(argument, tracer))
        result = function(*args, **kwargs)
    for new_node in graph.nodes:
        if new_node not in existing:
            new_node.meta["val"] = _noted(new_node)
    if not isinstance(result, tuple):
        node.replace_all_uses_with(result.node)
        return
    for user in list(node.users):
        user.replace_all_uses_with(result[cast(int, user.args[1])].node)


def _replace(node: fx.Node, target: Any, args: tuple[Any, ...]) -> None:
    with node.graph.inserting_before(node):
        node.replace_all_uses_with(call_function(node.graph, target, args))


def _mapped(node: fx.Node, function: Callable[[fx.Node], Any]) -> tuple[Any, Any]:
    """The arguments of a node, with what `function` gives for each node among them."""
    args: Any = fx.map_arg((node.args, node.kwargs), function)
    return args[0], args[1]


def _noted(node: fx.Node) -> Any:
    """The value of a node as tracers note it, computed from the notes of its arguments."""
    args, kwargs = _mapped(node, lambda argument: argument.meta["val"])
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _finish(gm: fx.GraphModule) -> None:
    gm.graph.eliminate_dead_code()
    gm.graph.lint()
    gm.recompile()


_PASSES = (
    remove_no_op_slice,
    decompose_dynamic_native_layer_norm,
    decompose_dynamic_native_group_norm,
    decompose_split_with_sizes,
    decompose_dynamic_shape_select,
    flatten_embedding_indices_tensor,
    dynamic_unsqueeze_to_view,
    replace_dynamic_expand_with_xla_op,
    replace_dynamic_view_with_xla_op,
)
