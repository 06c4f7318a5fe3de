"""Converts an exported program's open dimensions to JAX's symbolic dimensions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import torch
from jax import export
from torch.export import ExportedProgram

from xla_core.base.errors import UnsupportedOperationError

Dim: TypeAlias = Any  # an int, or JAX's symbolic dimension, whose type has no public name
_LARGEST = 1 << 62  # torch writes "no upper bound" as a number beyond this

# Operators of torch's expressions, by class name.
_OPERATORS: Mapping[str, Callable[..., Dim]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": operator.pow,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "CeilDiv": lambda size, by: -(-size // by),
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "ModularIndexing": lambda size, by, modulus: (size // by) % modulus,
    "Max": lambda *dims: _fold(jax.core.max_dim, dims),
    "Min": lambda *dims: _fold(jax.core.min_dim, dims),
}


def _fold(function: Callable[[Dim, Dim], Dim], dims: tuple[Dim, ...]) -> Dim:
    result, *others = dims
    for dim in others:
        result = function(result, dim)
    return result


@dataclass(frozen=True, slots=True)
class SymbolicDims:
    """The open dimensions of a program: JAX's dimension for each of torch's symbols."""

    by_symbol: Mapping[str, Dim]

    def of(self, size: int | torch.SymInt) -> Dim:
        """The dimension for a size that torch noted while tracing."""
        return size if isinstance(size, int) else self._value(size.node.expr)

    def shape(self, sizes: Iterable[int | torch.SymInt]) -> tuple[Dim, ...]:
        """The dimensions for a shape that torch noted while tracing."""
        return tuple(self.of(size) for size in sizes)

    def _value(self, expression: Any) -> Dim:
        if expression.is_Integer:
            return int(expression)
        if expression.is_Symbol:
            return self._symbol(str(expression))
        operator_name = type(expression).__name__
        if operator_name not in _OPERATORS:
            raise UnsupportedOperationError(f"a size of the exported program is {expression}: {operator_name} of sizes cannot be exported")
        return _OPERATORS[operator_name](*[self._value(part) for part in expression.args])

    def _symbol(self, name: str) -> Dim:
        if name not in self.by_symbol:
            raise UnsupportedOperationError(
                f"a size of the exported program ({name}) depends on data and not on the sizes of its inputs: "
                "give results a fixed size, with masks or padding"
            )
        return self.by_symbol[name]


def open_symbols(exported: ExportedProgram) -> list[str]:
    """The symbols of a program's open sizes, in the order of its inputs; empty if all sizes are fixed."""
    symbols: dict[str, None] = {}
    for size in _open_sizes(exported):
        symbols.update(dict.fromkeys(sorted(map(str, size.node.expr.free_symbols))))
    return list(symbols)


def symbolic_dims(exported: ExportedProgram, equalities: Sequence[str] = ()) -> SymbolicDims:
    """JAX's dimensions for a program's open sizes, with torch's ranges. equalities: further constraints."""
    symbols = open_symbols(exported)
    if not symbols:
        return SymbolicDims({})
    constraints = [text for symbol, bounds in exported.range_constraints.items() for text in _bounds(str(symbol), bounds, symbols)]
    constraints.extend(equalities)
    dims = export.symbolic_shape(", ".join(symbols), constraints=constraints)
    return SymbolicDims(dict(zip(symbols, dims, strict=True)))


def _bounds(symbol: str, bounds: Any, symbols: list[str]) -> Iterator[str]:
    if symbol not in symbols:
        return
    if bounds.lower > 1:  # JAX assumes that dimensions are at least 1
        yield f"{symbol} >= {int(bounds.lower)}"
    if bounds.upper < _LARGEST:
        yield f"{symbol} <= {int(bounds.upper)}"


def _open_sizes(exported: ExportedProgram) -> Iterator[torch.SymInt]:
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            value = node.meta.get("val")
            sizes = value.shape if isinstance(value, torch.Tensor) else [value]
            yield from (size for size in sizes if isinstance(size, torch.SymInt))
