"""The graph of an exported program whose inputs have open sizes, as dynamic StableHLO: JAX's shape polymorphism."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import torch
from torch import fx
from torch.export import ExportedProgram

from xla_core.base.dtypes import device_dtype
from xla_core.base.errors import UnsupportedOperationError
from xla_core.features.export.torch_export.symbolic_dims import SymbolicDims, symbolic_dims
from xla_core.features.export.torch_export.symbolic_operations import EqualSizes, SymbolicInterpreter, constant
from xla_core.ops.axes import is_open

OPEN = -1  # the size of an open dimension in signatures
Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """An input of the graph that is an input of the function, too: which one."""

    number: int


@dataclass(frozen=True, slots=True)
class SymbolicFunction:
    """Dynamic StableHLO as text, and the sizes of its inputs and results, -1 where they are open."""

    text: str
    inputs: tuple[Sizes, ...]
    results: tuple[Sizes, ...]


def symbolic_function(functional: ExportedProgram, values: Sequence[Any], results: Sequence[int], platform: str) -> SymbolicFunction:
    """What a functional program computes for any sizes within the ranges that it was exported for.

    values: for each input of the graph, `Taken`, a tensor that becomes part of the module, or a constant; for tokens None. results: the
    places of those to compute among the graph's. platform: where it is to run. Raises UnsupportedOperationError for operations that need
    fixed sizes.
    """
    _drop_assertions(functional.graph_module)
    equalities: list[str] = []
    while True:
        try:
            with jax.enable_x64(True), _explained():
                found = _exported(functional, values, results, platform, equalities)
            break
        except EqualSizes as sizes:
            # A constraint, which the module will assert.
            if sizes.constraint in equalities:
                raise UnsupportedOperationError(f"JAX cannot be told that {sizes.constraint}: fix one of these sizes") from sizes
            equalities.append(sizes.constraint)
    shapes = [tuple(_sizes(aval.shape) for aval in avals) for avals in (found.in_avals, found.out_avals)]
    return SymbolicFunction(str(found.mlir_module()), *shapes)


def _exported(
    functional: ExportedProgram, values: Sequence[Any], results: Sequence[int], platform: str, equalities: Sequence[str]
) -> jax.export.Exported:
    dims = symbolic_dims(functional, equalities)
    taken: dict[int, fx.Node] = {}
    for node, value in zip(functional.graph.find_nodes(op="placeholder"), values, strict=True):
        if isinstance(value, Taken):
            taken.setdefault(value.number, node)
    structs = [_struct(taken[number], dims) for number in range(len(taken))]
    main = _main(SymbolicInterpreter(functional.graph_module, dims, platform), values, results)
    return jax.export.export(jax.jit(main, keep_unused=True), platforms=(platform,))(*structs)


def _main(interpreter: SymbolicInterpreter, values: Sequence[Any], results: Sequence[int]) -> Callable[..., tuple[jax.Array, ...]]:
    def main(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        found = interpreter.run(*[_filled(value, arrays) for value in values], enable_io_processing=False)
        return tuple(jax.numpy.asarray(found[place]) for place in results)

    return main


def _filled(value: Any, arrays: Sequence[jax.Array]) -> Any:
    if isinstance(value, Taken):
        return arrays[value.number]
    return jax.numpy.asarray(constant(value)) if isinstance(value, torch.Tensor) else value


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


def _drop_assertions(module: fx.GraphModule) -> None:
    """Take torch's checks of sizes out of a graph: their comparisons have no value while sizes are open, and JAX makes its own."""
    for node in reversed(module.graph.nodes):
        if node.op == "call_function" and not node.users and node.meta.get("val") is None:
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _struct(node: fx.Node, dims: SymbolicDims) -> jax.ShapeDtypeStruct:
    noted = node.meta["val"]
    return jax.ShapeDtypeStruct(dims.shape(noted.shape), device_dtype(noted.dtype))


def _sizes(shape: Sequence[Any]) -> Sizes:
    return tuple(OPEN if is_open(size) else int(size) for size in shape)
