"""Evaluate programs operator by operator, each compiled by itself: the reference for what XLA makes of whole programs.

Nothing is fused or reordered across operators, and a program of operators that ran before compiles nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from xla_core.engine.compile.compiler import over_words
from xla_core.engine.compile.emit import Constants
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.signature import Signature
from xla_core.engine.placement.layout import Layout
from xla_core.engine.placement.placement import Placement, Replicas
from xla_core.ops.checks import Check
from xla_core.ops.table import Context

_OPERATORS = 4096


@dataclass(slots=True)
class _Operator:
    """One operation over arrays, compiled at its first call. call: returns results and the values of its checks. faults: of the checks."""

    call: Callable[..., tuple[list[Any], list[Any]]]
    faults: list[tuple[int, tuple[int, int]]] = field(default_factory=list)


class Operators:
    """Executables of single operations, at most `size` of them; the least recently used goes first."""

    def __init__(self, size: int = _OPERATORS) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._operators: OrderedDict[Any, _Operator] = OrderedDict()

    def __len__(self) -> int:
        return len(self._operators)

    def emit(self, signature: Signature, operands: list[Any], context: Context, checks: list[Check] | None = None) -> list[Any]:
        """The results of an operation, as `Signature.emit` computes them. Python numbers among the operands are constants in it."""
        numbers = tuple([None if isinstance(operand, jax.Array) else (type(operand), operand) for operand in operands])
        operator = self._operator((signature, numbers, context, checks is not None))
        arrays = [operand for operand in operands if isinstance(operand, jax.Array)]
        results, values = operator.call(*arrays)
        if checks is not None:
            checks.extend(
                [Check(fault, value, fault_numbers) for (fault, fault_numbers), value in zip(operator.faults, values, strict=True)]
            )
        return results

    def _operator(self, key: Any) -> _Operator:
        with self._lock:
            operator = self._operators.pop(key, None) or _compiled(*key)
            self._operators[key] = operator
            while len(self._operators) > self._size:
                self._operators.popitem(last=False)
            return operator


def _compiled(signature: Signature, numbers: tuple[Any, ...], context: Context, checked: bool) -> _Operator:
    def call(*arrays: jax.Array) -> tuple[list[Any], list[Any]]:
        remaining = iter(arrays)
        checks: list[Check] | None = [] if checked else None
        results = signature.emit([next(remaining) if number is None else number[1] for number in numbers], context, checks)
        operator.faults = [(check.fault, check.numbers) for check in checks or ()]
        return results, [check.value for check in checks or ()]

    operator = _Operator(jax.jit(call))
    return operator


operators = Operators()
"""Of this process."""


def can_evaluate(placement: Placement) -> bool:
    """Whether programs of a placement can be evaluated so. Replicas cannot: their collectives wait for each other inside one program."""
    return not isinstance(placement, Replicas)


def reference(graph: Graph, constants: Constants, placement: Placement, layout: Layout, checked: bool) -> Callable[..., list[Any]]:
    """The graph as a function over `(*buffers, *words)`, like `jitted`, but evaluated operator by operator, without donation."""
    evaluate = layout.over_buffers(over_words(graph, constants, placement, None, checked, operators.emit))
    shardings = layout.out_shardings

    def run(*arguments: Any) -> list[Any]:
        results = list(evaluate(*[jax.numpy.asarray(argument) for argument in arguments]))
        per_result = shardings if isinstance(shardings, tuple) else (shardings,) * len(results)
        return [
            result if sharding is None else jax.device_put(result, sharding) for result, sharding in zip(results, per_result, strict=True)
        ]

    return run
