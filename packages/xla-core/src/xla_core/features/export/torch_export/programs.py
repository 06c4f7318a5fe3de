"""Programs of `torch.export` before they are traced: what cannot be exported is refused, what torch can say more plainly it does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

import torch
from torch.export import ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import OpOverload
from xla_core.features.export.torch_export.bundle import StableHLOGraphModule


def check_methods(programs: Mapping[str, ExportedProgram], overridden: bool) -> None:
    """Raise ValueError for names that cannot be methods. overridden: tracing arguments are given, which one program only can have."""
    if not programs:
        raise ValueError("no programs to export: give at least one, by the name of its method")
    if overridden and len(programs) > 1:
        raise ValueError(f"override_tracing_arguments cannot be for {len(programs)} programs: export each with example inputs of its own")
    for name in programs:
        if not name.isidentifier() or name.startswith("_") or hasattr(StableHLOGraphModule, name):
            raise ValueError(f"{name!r} cannot be a method of an exported module: choose an identifier that is none of its attributes")


def _nodes(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def refuse_data_dependent(program: ExportedProgram) -> None:
    """Raise UnsupportedOperationError for operations whose result has a shape, or is a Python number, that only data can tell."""
    for node in _nodes(program):
        if isinstance(node.target, OpOverload) and _depends_on_data(node):
            raise UnsupportedOperationError(
                f"{node.target} cannot be exported: data decides the shape of its result, or it is a Python number. "
                "Compute it outside, or keep the shape: torch.where and masked sums in the place of masks as indices and of nonzero, "
                "tensors of one element in the place of item()"
            )


def _depends_on_data(node: torch.fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.data_dependent_output in tags:
        return True
    return torch.Tag.dynamic_output_shape in tags and bool(free_unbacked_symbols(node.meta.get("val")))


def without_autocast(program: ExportedProgram) -> ExportedProgram:
    """The program with the casts of its autocast regions, which are those of the CPU or of a GPU, as operations."""
    if any(node.target is torch.ops.higher_order.wrap_with_autocast for node in _nodes(program)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch's, for what it does itself
            program = program.run_decompositions({})
    return program
