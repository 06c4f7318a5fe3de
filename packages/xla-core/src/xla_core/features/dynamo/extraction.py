"""Extracts the parts of a recorded FX graph for callers, and the backend of `torch.compile` under its second name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from xla_core.base import private_torch
from xla_core.engine.graph.text import graph_hash
from xla_core.engine.runtime import resharding
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tracing.origins import ArgumentItself, Constant, Result, ViewOf
from xla_core.features.dynamo.bridge import CompiledGraph, extract_compiled_graph
from xla_core.features.dynamo.capture import NotOneProgram
from xla_core.features.dynamo.helpers import GraphInputMatcher, NoneRemover, SpecialReturnHandler
from xla_core.features.dynamo.program import RecordedGraph


class ExtractedGraph(NamedTuple):
    """A graph that was recorded for its arguments as one program.

    xla_args_sharding_spec: the sharding of each xla tensor among the arguments, or None. args_and_out: a meta tensor for each result of the
    program, updates of arguments first. graph_hash: the same in every process. arg_index_to_need_update_index: for arguments that the graph
    writes to, the index of the result with the new value. xla_args_need_update: for each argument, whether the graph writes to it.
    """

    xla_args_sharding_spec: list[Any]
    args_and_out: list[torch.Tensor]
    graph_hash: bytes
    arg_index_to_need_update_index: dict[int, int]
    none_remover: NoneRemover
    graph_input_matcher: GraphInputMatcher
    special_return_handler: SpecialReturnHandler
    xla_args_need_update: list[bool]


def _arguments(model: fx.GraphModule) -> tuple[Any, ...]:
    args = getattr(model, "xla_args", None)
    if args is None:
        raise ValueError("the graph has no example arguments: set its attribute xla_args to a tuple of them, or let InputCollector do so")
    return tuple(args)


def extract_graph_helper(
    xla_model: fx.GraphModule, sym_constants_to_graph_vars: dict[tuple[int | float, ...], tuple[Any, ...]]
) -> ExtractedGraph:
    """Record a graph for its `xla_args`, which are not changed. Also stores the result in the dictionary, by the numbers among them.

    Raises ValueError for a graph without `xla_args`, RuntimeError for a graph that is not one program (it has a fallback, or reads values).
    """
    args = _arguments(xla_model)
    tensors = list(map(tensor_behind, args))
    captured = CompiledGraph(xla_model).program(args, tensors)
    if not isinstance(captured, RecordedGraph):
        raise NotOneProgram("the graph is no single program: extract_compiled_graph gives a callable that parts it")
    extracted = _extracted(captured, args)
    numbers = tuple(arg for arg in args if isinstance(arg, (int, float)))
    sym_constants_to_graph_vars[numbers] = extracted
    return extracted


def _extracted(captured: RecordedGraph, args: tuple[Any, ...]) -> ExtractedGraph:
    arg_of = [source if isinstance(source, int) else None for source in captured.sources]
    written = {arg for index, _ in captured.written if (arg := arg_of[index]) is not None}
    updates = {arg: origin.index for index, origin in captured.written if isinstance(origin, Result) and (arg := arg_of[index]) is not None}
    need_update = [arg in written for arg in range(len(args))]
    results = list(captured.results)
    none_remover = NoneRemover()
    none_remover.remove_nones(results)
    constants = [
        (result.value if isinstance(result, Constant) else result, position)
        for position, result in enumerate(results)
        if not isinstance(result, (ArgumentItself, ViewOf))
    ]
    outputs = [
        args[result.index] if isinstance(result, ArgumentItself) else result
        for result in results
        if isinstance(result, (ArgumentItself, ViewOf))
    ]
    return ExtractedGraph(
        [resharding.requested_sharding(tensor._storage) for tensor in map(tensor_behind, args) if tensor is not None],
        [torch.empty(aval.shape, dtype=aval.dtype, device="meta") for aval in captured.avals],
        bytes.fromhex(graph_hash(captured.graph)),
        updates,
        none_remover,
        _matcher(captured, args),
        SpecialReturnHandler(args, outputs, need_update, constants),
        need_update,
    )


def _matcher(captured: RecordedGraph, args: tuple[Any, ...]) -> GraphInputMatcher:
    """Make a matcher that finds the program's inputs among a call's arguments. The graph's own tensors are used as they are."""
    ids: dict[int, int] = {}
    for index, tensor in enumerate(map(tensor_behind, args)):
        if tensor is not None:
            ids.setdefault(id(tensor._storage), index)
    inputs = [args[source] if isinstance(source, int) else source for source in captured.input_sources()]
    return GraphInputMatcher(ids, [id(tensor_behind(item)._storage) for item in inputs], inputs, set(ids))  # type: ignore[union-attr]


def extract_internal(xla_model: fx.GraphModule) -> Callable[..., Any]:
    """Make a callable that runs the graph as a compiled program, recorded for its `xla_args`. Raises ValueError without `xla_args`."""
    return extract_compiled_graph(xla_model, _arguments(xla_model))


def extract_compiled_graph_helper(xla_model: fx.GraphModule, xla_args: Sequence[Any]) -> Callable[..., Any]:
    """Like `extract_compiled_graph`, but also store the arguments on the graph, as `xla_args`."""
    xla_model.xla_args = tuple(xla_args)  # type: ignore[assignment]
    return extract_internal(xla_model)


def _dynamo_backend(model: fx.GraphModule, sample_args: Any) -> Any:
    """Compile a graph of aten operations, without gradients, for torch's ahead-of-time autograd. sample_args: ignored."""
    return private_torch.boxed(CompiledGraph(model))


def dynamo_backend(fx: fx.GraphModule, args: Any) -> Any:
    """Backend `openxla` as a function: `torch.compile(model, backend=dynamo_backend)`."""
    return private_torch.ahead_of_time(_dynamo_backend)(fx, args)
