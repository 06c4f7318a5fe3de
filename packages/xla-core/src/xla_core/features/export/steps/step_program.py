"""Makes the program of a captured call one function over flat arrays that takes state and returns it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from xla_core.base.errors import CaptureError
from xla_core.engine.compile.compiler import source_scope
from xla_core.engine.compile.emit import Constants, program
from xla_core.engine.graph.aval import Aval
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tracing.numbers import Expression
from xla_core.engine.tracing.origins import Gradient, NewStorage, Origin, Result, Source, State, ViewOf, Zeros
from xla_core.features.captured.launch import Launch
from xla_core.features.captured.results import Existing
from xla_core.ops.table import Context


@dataclass(slots=True)
class Flat:
    """A function `run` over the arrays of `inputs`, a float64 array of `numbers`, and seeds; the latter two only if there are any.

    It returns results, then the new values of `written`. results: avals of the results. draws: how many seeds it takes.
    """

    run: Callable[..., list[Any]]
    inputs: list[tuple[Source, Aval]]
    numbers: list[Expression]
    draws: int
    results: list[Aval]
    written: list[tuple[Source, Aval]]


class CapturedProgram:
    """Splits a captured call into inputs, numbers, results and written state."""

    def __init__(self, captured: Launch) -> None:
        self.recorded = captured.recorded
        self.run = self.recorded.run
        self.graph = self.run.program.changed or self.run.graph
        self.result_avals: list[Any] = list(self.run.graph.parts.results)
        self._source_avals = list(self.run.graph.parts.leaves)
        self.avals: dict[Source, Aval] = dict(zip(self.recorded.sources, self._source_avals, strict=True))
        self.expressions: list[Expression] = []
        self.after: dict[Source, Origin] = {source: origin for source, origin in self.recorded.writes if not isinstance(origin, Zeros)}
        self.shown = {index: self._shown(item) for index, item in enumerate(self.recorded.returned)}
        self._keep_gradients()

    def _shown(self, item: Any) -> tuple[Origin, Any] | None:
        """The value that a returned leaf shows, and its view; None for an unchanged argument, and for leaves that are not tensors."""
        if isinstance(item, ViewOf):
            storage = item.storage
            return self.recorded.new[storage.index] if isinstance(storage, NewStorage) else self._current(storage), item.spec
        if isinstance(item, Existing) and item.index is None:
            tensor = ours(item.tensor)
            return self._current(State(tensor._storage)), tensor._view
        return None

    def _current(self, source: Source) -> Origin:
        return self.after.get(source, source)

    def _keep_gradients(self) -> None:
        """Keep gradients as state if they are read, or if no optimizer is stepped, because the caller may use them."""
        recorded = self.recorded
        read = {gradient for gradient in self._read() if isinstance(gradient, Gradient)}
        for index, leaf in enumerate(recorded.leaves):
            gradient = Gradient(index)
            if gradient in read and not leaf.after:
                raise CaptureError(
                    f"it takes the gradient of a parameter of shape {tuple(leaf.tensor.shape)} from outside, and lets go of it: capture "
                    "the backward pass in the same function"
                )
            kept = gradient in read or not recorded.stepped
            if leaf.fresh and kept and leaf.origin is not None:
                self.after[gradient] = leaf.origin
            elif not kept:
                self.after.pop(gradient, None)

    def _read(self) -> list[Source]:
        """The sources whose values before the call are used."""
        shown = [view[0] for view in self.shown.values() if view is not None]
        origins: list[Origin] = [*self.after.values(), *shown]
        return list(dict.fromkeys([*self.recorded.sources, *[origin for origin in origins if not isinstance(origin, Result)]]))

    def aval(self, origin: Origin) -> Aval:
        """The shape and dtype of a value."""
        if isinstance(origin, Result):
            return self.result_avals[origin.index]  # type: ignore[no-any-return]
        if origin in self.avals:
            return self.avals[origin]
        if isinstance(origin, State):
            return origin.storage.value.aval
        raise CaptureError("it keeps an argument or a gradient that it does not compute with: return a copy of that, with clone()")

    def _packed(self) -> Callable[[Any], list[Any]]:
        """Make a function from followed numbers to the program's packed numbers. Sets `expressions`, and `constants` for other numbers."""
        inputs, expressions = self.run.inputs, self.run.expressions
        symbolic = [index for index in range(len(inputs.fixed_floats)) if (True, index) in expressions]
        rows: list[Expression] = [expressions.get((False, index), value) for index, value in enumerate(inputs.floats)]
        rows += [expressions[True, index] for index in symbolic]
        self.constants = Constants(
            tuple(None if index in symbolic else value for index, value in enumerate(inputs.fixed_floats)), tuple(inputs.fixed_ints)
        )
        self.expressions = list(dict.fromkeys(row for row in rows if not isinstance(row, float)))
        position_of = {row: index for index, row in enumerate(self.expressions)}

        def packed(numbers: Any) -> list[Any]:
            floats = [np.float64(row) if isinstance(row, float) else numbers[position_of[row]] for row in rows]
            ints = [np.array(inputs.ints, np.int64)] if inputs.ints else []
            return [*([jax.numpy.stack(floats)] if floats else []), *ints]

        return packed

    def flat(self, context: Context) -> Flat:
        """The call as a function of arrays. context: what to compile it for."""
        packed = self._packed()
        inputs = [(source, self.aval(source)) for source in self._read()]
        emit = program(self.graph, self.constants, context, source_scope)
        sources, draws, taken = self.recorded.sources, self.recorded.drawn, np.array(self.recorded.seeds)
        written = list(self.after.items())
        shown = [view for view in self.shown.values() if view is not None]
        has_numbers = bool(self.expressions)

        def run(*arrays: Any) -> list[Any]:
            before = dict(zip([source for source, _ in inputs], arrays, strict=False))
            remaining = list(arrays[len(inputs) :])
            numbers = remaining.pop(0) if has_numbers else None
            if draws:
                remaining = [remaining[0][taken]]
            *computed, _ = emit(*[before[source] for source in sources], *packed(numbers), *remaining)

            def value(origin: Origin) -> Any:
                return computed[origin.index] if isinstance(origin, Result) else before[origin]

            results = [_view(value(origin), spec, context) for origin, spec in shown]
            return _apart([*results, *[value(origin) for _, origin in written]], arrays)

        results = [self.aval(origin) if spec is None else spec.aval for origin, spec in shown]
        return Flat(run, inputs, self.expressions, draws, results, [(source, self.aval(origin)) for source, origin in written])


def _view(array: Any, spec: Any, context: Context) -> Any:
    if spec is None or not spec.steps:
        return array
    return spec.read.emit([array, *spec.offsets], context)[0]


def _apart(values: list[Any], inputs: tuple[Any, ...]) -> list[Any]:
    """Copy values that are inputs or occur twice, because the next call donates the state."""
    seen = {id(array) for array in inputs}
    apart = []
    for value in values:
        apart.append(jax.numpy.copy(value) if id(value) in seen else value)
        seen.add(id(value))
    return apart
