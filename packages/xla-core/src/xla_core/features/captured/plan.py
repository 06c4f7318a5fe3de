"""Prepares lists from a recorded call, and functions that pick from lists, for checking and launching it as a captured call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch

from xla_core.engine.graph.aval import Aval
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tracing.numbers import Formulas, Symbol, picker
from xla_core.engine.tracing.origins import Argument, Gradient, NewStorage, Origin, Result, Source, State, ViewOf, Zeros
from xla_core.features.captured.holders import Writes
from xla_core.features.captured.optimizers import Counter, reader
from xla_core.features.captured.passed import is_number
from xla_core.features.captured.recorded import GradientLeaf, Recorded
from xla_core.features.captured.results import Computed

Pick = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Watched:
    """Tensors that must still show the same data, with the same `requires_grad`.

    ours, ours_data, ours_views: tensors of our class, their storages and views; plain, plain_data: others and the objects that stand for
    their data. wants: `requires_grad` of each. counted: tensors that the call writes to, whose versions autograd checks. hosts: CPU
    tensors, with their versions.
    """

    ours: list[torch.Tensor]
    ours_data: list[Any]
    ours_views: list[Any]
    plain: list[torch.Tensor]
    plain_data: list[Any]
    tensors: list[torch.Tensor]
    wants: list[bool]
    counted: list[torch.Tensor]
    hosts: list[torch.Tensor]
    host_versions: list[int]


def watched(recorded: Recorded) -> Watched:
    """Collect the tensors that a captured call checks."""
    # Optimizers' states are many: for them it is enough that no tensor at all was given other data.
    own = {id(item) for stepped in recorded.stepped for state in stepped.optimizer.state.values() for item in state.values()}
    bindings = [binding for binding in recorded.bindings if id(binding[0]) not in own]
    of_ours = [(tensor, data) for tensor, data, _ in bindings if type(tensor) is XLATensor]
    others = [(tensor, data) for tensor, data, _ in bindings if type(tensor) is not XLATensor]
    tensors = [tensor for tensor, _, _ in bindings]
    # Autograd graphs outside may have saved tensors that the call writes to, and must notice. Nobody saves the state of optimizers.
    written = {id(source.storage) for source, _ in recorded.writes if isinstance(source, State)}
    return Watched(
        [tensor for tensor, _ in of_ours],
        [data for _, data in of_ours],
        [tensor._view for tensor, _ in of_ours],
        [tensor for tensor, _ in others],
        [data for _, data in others],
        tensors,
        [wants for _, _, wants in bindings],
        [tensor for tensor in tensors if id(ours(tensor)._storage) in written],
        [tensor for tensor, _ in recorded.hosts],
        [version for _, version in recorded.hosts],
    )


@dataclass(frozen=True, slots=True)
class Storages:
    """All storages that take part, in one list: state, then arguments, then gradients.

    state: the first storages; arguments: indices of the arguments whose storages follow; gradients: picks the last ones. index: position of
    each source in the list. inputs: indices of the program's inputs, which must have these avals and shardings (None: one device). donated:
    positions of the inputs that the program takes over. aliases: pairs of storages that must have one buffer.
    """

    state: list[Storage]
    arguments: list[int]
    gradients: Pick
    index: dict[Source, int]
    inputs: list[int]
    pick_inputs: Pick
    avals: list[Aval]
    shardings: list[jax.sharding.Sharding] | None
    donated: tuple[int, ...]
    pick_donated: Pick
    aliases: list[tuple[int, int]]


def storages(recorded: Recorded, over_mesh: bool) -> Storages:
    """List the storages that take part in a call. over_mesh: in SPMD mode."""
    run = recorded.run
    sources = [*recorded.sources, *[source for source, _ in recorded.writes], *[source for pair in recorded.aliases for source in pair]]
    sources += [origin for origin in _origins(recorded) if origin is not None and not isinstance(origin, (Result, Zeros))]
    views = [item.storage for item in recorded.results if isinstance(item, ViewOf)]
    sources += [storage for storage in views if not isinstance(storage, NewStorage)]
    state = dict.fromkeys(source for source in sources if isinstance(source, State))
    arguments = dict.fromkeys(source for source in sources if isinstance(source, Argument))
    gradients = dict.fromkeys(source for source in sources if isinstance(source, Gradient))
    ordered: list[Source] = [*state, *arguments, *gradients]
    index = {source: position for position, source in enumerate(ordered)}
    inputs = [index[source] for source in recorded.sources]
    donated = (run.program.changed or run.graph).parts.donated
    return Storages(
        [source.storage for source in state],
        [source.index for source in arguments],
        picker([source.index for source in gradients]),
        index,
        inputs,
        picker(inputs),
        list(run.graph.parts.leaves),
        [buffer.sharding for buffer in run.inputs.buffers] if over_mesh else None,
        donated,
        picker([inputs[position] for position in donated]),
        [(index[first], index[second]) for first, second in recorded.aliases],
    )


def _origins(recorded: Recorded) -> list[Origin | Zeros | None]:
    """The origins of all values that a call stores."""
    return [*[origin for _, origin in recorded.writes], *recorded.new, *[leaf.origin for leaf in recorded.leaves]]


def _shared_results(recorded: Recorded) -> set[int]:
    """Indices of results that several storages share as one value."""
    indices = [origin.index for origin in _origins(recorded) if isinstance(origin, Result)]
    return {index for index in indices if indices.count(index) > 1}


@dataclass(frozen=True, slots=True)
class Writing:
    """The storages that a call writes to, by index.

    taken_over, renewed: storages whose value objects are theirs alone and get a new buffer; the program takes over the buffers of
    taken_over. others: storages with the origins of their new values; zeroed: those that get zeros. copied: positions of
    inputs that the program takes over although their storages keep their values. arguments: those that are written to.
    """

    taken_over: Writes
    renewed: Writes
    others: list[tuple[int, Source | Result]]
    zeroed: list[int]
    copied: list[int]
    arguments: list[int]


def writing(recorded: Recorded, parts: Storages) -> Writing:
    """Sort a call's writes to storages."""
    donated = {parts.inputs[position] for position in parts.donated}
    needed = {parts.index[origin] for origin in _origins(recorded) if origin is not None and not isinstance(origin, (Result, Zeros))}
    shared = _shared_results(recorded)
    taken_over: list[tuple[int, int]] = []
    renewed: list[tuple[int, int]] = []
    others: list[tuple[int, Source | Result]] = []
    zeroed: list[int] = []
    for source, origin in recorded.writes:
        index = parts.index[source]
        if isinstance(origin, Zeros):
            zeroed.append(index)
        elif not isinstance(origin, Result) or origin.index in shared or index in needed:
            others.append((index, origin))
        else:
            (taken_over if index in donated else renewed).append((index, origin.index))
    # Inputs whose old value is not replaced: a gradient that the call drops, and that others may hold.
    written = {parts.index[source] for source, _ in recorded.writes}
    arguments = [source.index for source, _ in recorded.writes if isinstance(source, Argument)]
    copied = [position for position in parts.donated if parts.inputs[position] not in written]
    return Writing(Writes(taken_over), Writes(renewed), others, zeroed, copied, arguments)


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients before and after a call.

    leaves: the tensors that get gradients; without: for each, whether it had none. fresh: leaves with a new gradient tensor, with functions
    that pick their gradients and their results, and the avals of these; dropped: tensors that lose their gradient; shared:
    pairs of tensors of which the first gets the gradient of the second.
    """

    leaves: list[torch.Tensor]
    without: list[bool]
    fresh: list[GradientLeaf]
    pick_fresh: Pick
    results: list[int]
    pick_results: Pick
    avals: list[Aval | None]
    dropped: list[torch.Tensor]
    shared: list[tuple[torch.Tensor, torch.Tensor]]


def gradients(recorded: Recorded) -> Gradients:
    """List the gradients that a call makes, takes and drops."""
    shared = _shared_results(recorded)
    fresh = [leaf for leaf in recorded.leaves if leaf.fresh and leaf.same_as is None]
    indices = [leaf.origin.index for leaf in fresh if isinstance(leaf.origin, Result) and leaf.spec is None]
    alone = [index for index in indices if index not in shared]
    results = recorded.run.graph.parts.results
    return Gradients(
        [leaf.tensor for leaf in recorded.leaves],
        [not leaf.before for leaf in recorded.leaves],
        fresh,
        picker([index for index, leaf in enumerate(recorded.leaves) if leaf.fresh and leaf.same_as is None]),
        alone,
        picker(alone),
        [results[index] for index in alone],
        [leaf.tensor for leaf in recorded.leaves if leaf.before and not leaf.after],
        [(leaf.tensor, recorded.leaves[leaf.same_as].tensor) for leaf in recorded.leaves if leaf.fresh and leaf.same_as is not None],
    )


@dataclass(slots=True, eq=False)
class Count:
    """Equal step counts. arrays: show their memory; now: their value when last read; advance: what a call adds."""

    symbol: Symbol
    tensors: list[torch.Tensor]
    arrays: list[Any]
    now: float
    advance: float

    def read(self) -> bool:
        """Read the counts, which other programs, recorded calls and users may change. Whether they are still equal."""
        counts = list(map(np.ndarray.item, self.arrays))
        self.now = counts[0]
        return counts.count(self.now) == len(counts)


def _counts(counters: list[Counter]) -> list[Count]:
    together: dict[tuple[Symbol, float], list[Counter]] = {}  # parameters without a gradient keep their count
    for counter in counters:
        together.setdefault((counter.symbol, counter.advance), []).append(counter)
    return [
        Count(
            symbol,
            [counter.tensor for counter in alike],
            [counter.tensor.numpy() for counter in alike],
            alike[0].end,
            alike[0].advance,
        )
        for (symbol, _), alike in together.items()
    ]


@dataclass(slots=True)
class Numbers:
    """Computes the program's numbers from hyperparameters, numbers among the arguments and step counts.

    outcomes: of the comparisons that the step's Python made. floats, fixed_floats: the present inputs of the program; computed: the numbers
    that the call returns or leaves in Python.
    """

    counts: list[Count]
    hyperparameters: Callable[[], Any]
    formulas: Formulas
    outcomes: list[bool]
    floats: list[float]
    fixed_floats: list[float]
    computed: list[Any]
    _last: list[Any] = field(default_factory=list)

    def read(self, passed: list[Any]) -> bool:
        """Read hyperparameters and step counts. Whether the step's Python would take the same branches with them and with `passed`."""
        if not all(map(Count.read, self.counts)):
            return False
        if len(self.counts) > 1 and len({(count.symbol, count.now) for count in self.counts}) > len(
            {count.symbol for count in self.counts}
        ):
            return False  # equal when the call was recorded
        values = [*self.hyperparameters(), *passed, *[count.now for count in self.counts]]
        if not values or (values == self._last and (0 not in values or repr(values) == repr(self._last))):  # 0.0 is not -0.0
            return True
        if not all(map(is_number, values)):
            return False
        evaluated = self.formulas.evaluate(values)
        if evaluated is None:
            return False
        outcomes, self.floats, self.fixed_floats, self.computed = evaluated
        self._last = values if outcomes == self.outcomes else []
        return bool(self._last)


def numbers(recorded: Recorded) -> Numbers:
    """Prepare the numbers of a call."""
    counts = _counts(recorded.counters)
    inputs, expressions = recorded.run.inputs, recorded.run.expressions
    floats = [expressions.get((False, index), number) for index, number in enumerate(inputs.floats)]
    fixed = [expressions.get((True, index), number) for index, number in enumerate(inputs.fixed_floats)]
    computed = [item.expression for item in recorded.results if isinstance(item, Computed)]
    symbols = [*recorded.hyperparameters, *recorded.symbols, *[count.symbol for count in counts]]
    return Numbers(
        counts,
        reader([stepped.optimizer for stepped in recorded.stepped], recorded.hyperparameters),
        Formulas(symbols, [comparison.expression for comparison in recorded.comparisons], floats, fixed, computed),
        [comparison.outcome for comparison in recorded.comparisons],
        inputs.floats,
        inputs.fixed_floats,
        [],
    )
