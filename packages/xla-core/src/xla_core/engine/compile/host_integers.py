"""The small integers of a target's program, computed on the host: counters, lengths and flags by which a script goes on.

Nothing runs on a target; but a loop whose end is computed there, such as that of `generate`, must end. Integers are computed from integers
only: what else they are made of counts as 0, and they are not exact then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from xla_core.engine.compile.emit import Constants, leaves_of
from xla_core.engine.compile.words import float_form, rows_of_words
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import result_slots
from xla_core.engine.graph.graph import Graph, recorded_at
from xla_core.engine.graph.signature import Signature
from xla_core.engine.placement.planned import MOST_KNOWN, PlannedBuffer
from xla_core.ops.table import Context

_VIEWS = ("xla.read.", "xla.write.")
"""How the names of operations begin that read and write views."""


@dataclass(slots=True)
class _Function:
    """What computes the results. exact: for each whether it is made of known integers alone; found when it is traced."""

    call: Any
    exact: tuple[bool, ...] = ()


class HostIntegers:
    """The integers among the results of a program. platform: for which its other arguments, the words, are packed."""

    def __init__(self, graph: Graph, constants: Constants, platform: str) -> None:
        self._graph, self._constants = graph, constants
        self._rows = partial(rows_of_words, float_form(graph, platform))
        self._operations, self._outs = _computed(graph)
        self._functions: dict[tuple[bool | None, ...], _Function] = {}

    def added(self, results: Sequence[PlannedBuffer], arguments: Sequence[Any]) -> list[PlannedBuffer]:
        """The results, with the elements of those that are computed here. arguments: of the program, buffers and words."""
        host = _host() if self._outs else None
        if host is None:
            return list(results)
        leaves = self._graph.parts.leaves
        known = [_elements(buffer, aval) for buffer, aval in zip(arguments, leaves, strict=False)]
        pattern = tuple(
            [None if elements is None else getattr(buffer, "exact", True) for buffer, elements in zip(arguments, known, strict=False)]
        )
        function = self._functions.get(pattern)
        if function is None:
            function = self._functions[pattern] = _Function(None)
            function.call = jax.jit(partial(self._trace, function, pattern))
        with jax.enable_x64(True), jax.default_device(host):
            arrays = function.call([elements for elements in known if elements is not None], list(arguments[len(leaves) :]))
        computed = dict(zip(self._outs, zip(arrays, function.exact, strict=True), strict=True))
        return [
            result.with_elements(np.asarray(computed[at][0]), computed[at][1]) if at in computed else result
            for at, result in enumerate(results)
        ]

    def _trace(self, function: _Function, pattern: tuple[bool | None, ...], known: list[Any], words: list[Any]) -> list[Any]:
        graph, entries = self._graph, self._graph.entries
        parts, remaining = graph.parts, iter(known)
        buffers = [None if exact is None else next(remaining) for exact in pattern]
        values = dict(zip(parts.inputs, leaves_of(graph, self._constants, (*buffers, *words), self._rows), strict=True))
        exact = {slot: pattern[index] is True for index, slot in enumerate(parts.leaf_slots)}
        exact.update(dict.fromkeys(parts.scalar_slots, True))

        def value(slot: int) -> Any:
            aval = parts.avals[slot]
            return jax.numpy.zeros(aval.shape, aval.physical) if values.get(slot) is None and aval is not None else values[slot]

        for slot in self._operations:
            signature, *operands = recorded_at(entries, slot)
            results = signature.emit([value(operand) for operand in operands], Context(()))
            for at, result in zip(result_slots(entries, slot), results, strict=True):
                if values.get(at) is None:  # else it was computed earlier, and is a leaf
                    values[at], exact[at] = result, all(exact.get(operand, False) for operand in operands)
        outs = [graph.outs[index] for index in self._outs]
        function.exact = tuple(exact.get(out, False) for out in outs)
        return [value(out) for out in outs]


@cache
def _host() -> jax.Device | None:
    """The CPU; None where `JAX_PLATFORMS` leaves it out."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _computed(graph: Graph) -> tuple[list[int], list[int]]:
    """The slots of the operations that are computed on the host, and the positions of the results that they are computed for."""
    parts, entries = graph.parts, graph.entries
    able = {slot for slot in parts.operations if _is_able(graph, *recorded_at(entries, slot))}
    outs = [index for index, out in enumerate(graph.outs) if _is_small(parts.results[index]) and parts.makers[out] in able]
    needed: set[int] = {parts.makers[graph.outs[index]] for index in outs}
    for slot in reversed(parts.operations):
        if slot in needed:
            needed.update(parts.makers[operand] for operand in recorded_at(entries, slot)[1:])
    return sorted(needed & able), outs


def _is_able(graph: Graph, signature: Signature, *operands: int) -> bool:
    """Whether an operation is one of torch's over small integers and numbers, with results that are small integers."""
    avals = [graph.parts.avals[operand] for operand in operands]
    plain = signature.target.startswith("aten::") or signature.name.startswith(_VIEWS)
    plain = plain and not (signature.random or signature.has_side_effects or signature.has_bodies)
    return plain and all(map(_is_small, signature.outs)) and all(aval is None or _is_small(aval) for aval in avals)


def _is_small(aval: Aval | None) -> bool:
    return aval is not None and aval.integral and not aval.manual and aval.nbytes <= MOST_KNOWN


def _elements(buffer: Any, aval: Aval) -> np.ndarray[Any, Any] | None:
    """The known elements of a buffer; None for those that nobody knows, and those that are padded."""
    if aval.manual or not aval.integral or buffer.shape != aval.shape:
        return None
    if isinstance(buffer, PlannedBuffer):
        return buffer.known
    # Within torch_xla.compile_only, a buffer that was there before.
    return np.asarray(buffer) if aval.nbytes <= MOST_KNOWN and buffer.is_fully_addressable else None
