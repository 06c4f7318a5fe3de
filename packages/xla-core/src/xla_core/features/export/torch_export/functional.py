"""Makes programs of `torch.export` functional, with operations of the op table, and refuses programs that cannot be exported."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram, default_decompositions
from torch.export.graph_signature import InputKind
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import OpOverload, changed_program
from xla_core.engine.tensor.schema import Convention, calling
from xla_core.features.export.torch_export.bundle import StableHLOGraphModule
from xla_core.features.export.torch_export.constants import by_number
from xla_core.features.export.torch_export.device_interpreter import becomes_custom_call
from xla_core.features.export.torch_export.lowerings import is_served
from xla_core.features.export.torch_export.state import ModuleState, shown_memory, tensor_named
from xla_core.features.export.torch_export.symbolic_dims import open_symbols

_CONSTANTS = "constants of branches and loops"  # key in a graph's meta, which keeps them alive


def check_methods(programs: Mapping[str, ExportedProgram], overridden: bool) -> None:
    """Raise ValueError for names that cannot be methods. overridden: the options have tracing arguments, which allow one program only."""
    if not programs:
        raise ValueError("no programs to export: give at least one, by the name of its method")
    if overridden and len(programs) > 1:
        raise ValueError(f"override_tracing_arguments cannot be for {len(programs)} programs: export each with example inputs of its own")
    for name in programs:
        if not name.isidentifier() or name.startswith("_") or hasattr(StableHLOGraphModule, name):
            raise ValueError(f"{name!r} cannot be a method of an exported module: choose an identifier that is none of its attributes")


def refuse_data_dependent(program: ExportedProgram) -> None:
    """Raise UnsupportedOperationError for operations whose result is a Python number of data, or has a shape that depends on data."""
    for module in _modules(program.graph_module):
        for node in module.graph.nodes:
            if isinstance(node.target, OpOverload) and _depends_on_data(node):
                raise UnsupportedOperationError(
                    f"{node.target} cannot be exported: data decides the shape of its result, or it is a Python number. "
                    "Compute it outside, or keep the shape: torch.where and masked sums in the place of masks as indices and of nonzero, "
                    "tensors of one element in the place of item()"
                )


def _modules(module: fx.GraphModule) -> Iterator[fx.GraphModule]:
    """A program's graph module, and those of its branches, loops and regions."""
    return (inner for inner in module.modules() if isinstance(inner, fx.GraphModule))


def _depends_on_data(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.data_dependent_output in tags:
        return True
    return torch.Tag.dynamic_output_shape in tags and bool(free_unbacked_symbols(node.meta.get("val")))


def functional(
    program: ExportedProgram, arguments: Sequence[Any], custom_calls: frozenset[str] | set[str], state: ModuleState
) -> ExportedProgram:
    """Rewrite a program as functional operations, with writes in its signature.

    A tensor with several names becomes one input, and constants become buffers, since a program may write to them. arguments: flat; their
    shapes replace those of the export. Raises UnsupportedOperationError for programs that torch cannot rewrite.
    """
    _check_writes(program, state)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's own, about copying pytrees
            warnings.filterwarnings("ignore", "erase_node", UserWarning)  # from torch 2.14
            plain = _with_plain_inputs(program, arguments)
            functions: ExportedProgram = plain.run_decompositions(_decompositions(program, custom_calls))
    except Exception as error:
        raise UnsupportedOperationError(
            f"torch cannot write the program as functional operations ({type(error).__name__}: {str(error).partition(chr(10))[0]}): "
            "let it write to no views of its arguments, and no branch or loop write to anything"
        ) from error
    functions.graph_module.meta[_CONSTANTS] = plain.graph_module.meta[_CONSTANTS]
    return functions


def _decompositions(program: ExportedProgram, custom_calls: frozenset[str] | set[str]) -> dict[Any, Callable[..., Any]]:
    """Torch's decompositions, without custom calls, and, if all sizes are fixed, without operations that the device runs."""
    table: dict[Any, Callable[..., Any]] = dict(default_decompositions().items())
    keeps_all = not open_symbols(program)
    kept = [operator for operator in table if becomes_custom_call(operator, custom_calls) or (keeps_all and is_served(operator))]
    for operator in kept:
        del table[operator]
    return table


def _with_plain_inputs(program: ExportedProgram, arguments: Sequence[Any]) -> ExportedProgram:
    module, signature = copy.deepcopy(program.graph_module), copy.deepcopy(program.graph_signature)
    for copied, node in zip(module.graph.nodes, program.graph.nodes, strict=True):
        copied.name = node.name  # a copy renames nodes with names of builtins, such as `input`
    module.meta[_CONSTANTS] = [tensor for inner in _modules(module) if inner is not module for tensor in by_number(inner)]
    flat = iter(arguments)
    node_of_memory: dict[Any, fx.Node] = {}
    specs = []
    for node, spec in zip(module.graph.find_nodes(op="placeholder"), signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            _take_shape(node, next(flat))
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            if spec.kind is InputKind.CONSTANT_TENSOR:
                spec.kind, spec.persistent = InputKind.BUFFER, False
            first = node_of_memory.setdefault(shown_memory(tensor_named(program, str(spec.target))), node)
            if first is not node:
                node.replace_all_uses_with(first)
                signature.replace_all_uses(node.name, first.name)
                module.graph.erase_node(node)
                continue
        specs.append(spec)
    signature.input_specs = specs
    module.recompile()
    return changed_program(program, module, signature)


def _take_shape(node: fx.Node, argument: Any) -> None:
    """Give an input the shape and dtype of an argument for tracing, unless it has open sizes."""
    noted = node.meta.get("val")
    if not isinstance(argument, torch.Tensor) or not isinstance(noted, torch.Tensor):
        return
    if all(isinstance(size, int) for size in noted.shape) and (noted.shape, noted.dtype) != (argument.shape, argument.dtype):
        with noted.fake_mode:  # type: ignore[attr-defined]
            node.meta["val"] = torch.empty(argument.shape, dtype=argument.dtype, device=noted.device)


def _check_writes(program: ExportedProgram, state: ModuleState) -> None:
    """Raise UnsupportedOperationError for inputs whose shape changes, and for writes to state that shares memory with other state."""
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = dict(zip(placeholders, program.graph_signature.input_specs, strict=True))
    position = {node: index for index, node in enumerate(node for node, spec in specs.items() if spec.kind is InputKind.USER_INPUT)}
    for node, written in _writes(program.graph):
        if written not in specs:
            continue
        before, after = written.meta["val"], node.meta["val"]
        if torch.Tag.inplace_view in node.target.tags and before.shape != after.shape:  # type: ignore[union-attr]
            name = specs[written].target or f"argument {position[written]}"
            raise UnsupportedOperationError(
                f"the program gives {name} another shape, {list(after.shape)}: give that as a result of its own"
            )
        if specs[written].target is not None:
            target = str(specs[written].target)
            state.refuse_partial(state.name_of(target, tensor_named(program, target)))


def _writes(graph: fx.Graph) -> Iterator[tuple[fx.Node, fx.Node]]:
    """The nodes that write, each with the node that it writes to; for a view, its base."""
    base: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        if not isinstance(node.target, OpOverload) or not isinstance(first, fx.Node):
            continue
        convention = calling(node.target).convention
        if convention is not Convention.FUNCTIONAL:
            base[node] = base.get(first, first)
        if convention is Convention.MUTATING:
            yield node, base[node]
