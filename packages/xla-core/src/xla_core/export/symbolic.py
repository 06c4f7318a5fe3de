"""The function of an exported program whose inputs have open sizes, as dynamic StableHLO: JAX's shape polymorphism."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from xla_core.dtypes import device_dtype, torch_dtype
from xla_core.errors import UnsupportedOperationError
from xla_core.export.symbolic_dims import SymbolicDims, symbolic_dims
from xla_core.export.symbolic_operations import EqualSizes, SymbolicInterpreter, constant
from xla_core.ops.axes import is_open

OPEN = -1  # the size of an open dimension in signatures


@dataclass(frozen=True, slots=True)
class SymbolicInput:
    """An input of the function: its place among the inputs of the graph, its torch dtype, and its sizes, -1 where they are open."""

    place: int
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SymbolicFunction:
    """Dynamic StableHLO as text, its inputs, and the dtypes and sizes of its results."""

    text: str
    inputs: tuple[SymbolicInput, ...]
    results: tuple[tuple[torch.dtype, tuple[int, ...]], ...]


def symbolic_function(exported: ExportedProgram, values: Sequence[Any], inlined: Sequence[bool], platform: str) -> SymbolicFunction:
    """The graph of a program over its inputs, for any sizes within the ranges that it was exported for.

    values: for each input of the graph, a tensor (of arguments, only its dtype counts) or a constant. inlined: which of them become part of
    the module. platform: where it is to run. Raises UnsupportedOperationError for operations that need fixed sizes.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's own, of how it copies its pytrees
        functional = exported.run_decompositions()
    _drop_assertions(functional.graph_module)
    # Tokens order operations with effects, of which only checks are left: they are no inputs of the function.
    placeholders = [
        node
        for node, spec in zip(functional.graph.find_nodes(op="placeholder"), functional.graph_signature.input_specs, strict=True)
        if spec.kind is not InputKind.TOKEN
    ]
    taken = [
        place
        for place, (node, value, inline) in enumerate(zip(placeholders, values, inlined, strict=True))
        if isinstance(value, torch.Tensor) and not inline and (node.users or _is_open(node))
    ]
    found = _traced(functional, [(placeholders[place], place) for place in taken], values, platform)
    inputs = (SymbolicInput(place, values[place].dtype, _sizes(aval.shape)) for place, aval in zip(taken, found.in_avals, strict=True))
    results = (
        (_result_dtype(node, aval.dtype), _sizes(aval.shape)) for node, aval in zip(_results(functional), found.out_avals, strict=True)
    )
    return SymbolicFunction(str(found.mlir_module()), tuple(inputs), tuple(results))


def _traced(
    functional: ExportedProgram, taken: Sequence[tuple[torch.fx.Node, int]], values: Sequence[Any], platform: str
) -> jax.export.Exported:
    """The graph as JAX exports it. Sizes that are equal though JAX does not see it become constraints, which the module asserts."""
    equalities: list[str] = []
    while True:
        try:
            with jax.enable_x64(True), _explained():
                return _traced_once(functional, taken, values, platform, equalities)
        except EqualSizes as found:
            if found.constraint in equalities:
                raise UnsupportedOperationError(f"JAX cannot be told that {found.constraint}: fix one of these sizes") from found
            equalities.append(found.constraint)


def _traced_once(
    functional: ExportedProgram, taken: Sequence[tuple[torch.fx.Node, int]], values: Sequence[Any], platform: str, equalities: Sequence[str]
) -> jax.export.Exported:
    dims = symbolic_dims(functional, equalities)
    interpreter = SymbolicInterpreter(functional.graph_module, dims)
    tokens = sum(spec.kind is InputKind.TOKEN for spec in functional.graph_signature.input_specs)

    def main(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        given = dict(zip([place for _, place in taken], arrays, strict=True))
        filled = [given.get(place, _inlined(value)) for place, value in enumerate(values)]
        results = interpreter.run(*[None] * tokens, *filled, enable_io_processing=False)[tokens:]
        return tuple(jax.numpy.asarray(result) for result in results)

    return jax.export.export(jax.jit(main, keep_unused=True), platforms=(platform,))(*[_struct(node, dims) for node, _ in taken])


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what JAX refuses after tracing into our error."""
    try:
        yield
    except UnsupportedOperationError:
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise UnsupportedOperationError(f"the program cannot be exported with open sizes: {reason}") from error


def _drop_assertions(module: torch.fx.GraphModule) -> None:
    """Take torch's checks of sizes out of a graph: their comparisons have no value while sizes are open, and JAX makes its own."""
    for node in reversed(module.graph.nodes):
        if node.op == "call_function" and not node.users and node.meta.get("val") is None:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _is_open(node: torch.fx.Node) -> bool:
    return any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape)


def _struct(node: torch.fx.Node, dims: SymbolicDims) -> jax.ShapeDtypeStruct:
    noted = node.meta["val"]
    return jax.ShapeDtypeStruct(dims.shape(noted.shape), device_dtype(noted.dtype))


def _inlined(value: Any) -> Any:
    return jax.numpy.asarray(constant(value)) if isinstance(value, torch.Tensor) else value


def _sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    return tuple(OPEN if is_open(size) else int(size) for size in shape)


def _results(exported: ExportedProgram) -> list[Any]:
    tokens = sum(spec.kind is OutputKind.TOKEN for spec in exported.graph_signature.output_specs)
    return list(exported.graph.output_node().args[0][tokens:])


def _result_dtype(node: Any, dtype: np.dtype[Any]) -> torch.dtype:
    noted = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return noted.dtype if isinstance(noted, torch.Tensor) else torch_dtype(dtype)
