"""What a captured call needs to be checked and launched, worked out of a recorded one: lists, and functions that pick from lists."""

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
from xla_core.engine.tracing.origins import Argument, Gradient, NewStorage, Origin, Result, Source, State, ViewOf
from xla_core.features.captured.holders import Writes
from xla_core.features.captured.optimizers import Counter, reader
from xla_core.features.captured.recording import Leaf, Recorded

Pick = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Watched:
    """Tensors that must show the data that they showed, and want gradients as they did.

    ours, plain: those of our class with their storages, and others with the object that stands for their data. counted: those written to,
    whose versions autograd looks at. hosts: CPU tensors, with their versions.
    """

    ours: list[torch.Tensor]
    ours_data: list[Any]
    plain: list[torch.Tensor]
    plain_data: list[Any]
    tensors: list[torch.Tensor]
    wants: list[bool]
    counted: list[torch.Tensor]
    hosts: list[torch.Tensor]
    host_versions: list[int]


def watched(recorded: Recorded) -> Watched:
    """The tensors that a captured call looks at."""
    # Those of optimizers' states are many: it is enough to know that no tensor at all was given other data.
    own = {id(item) for stepped in recorded.stepped for state in stepped.optimizer.state.values() for item in state.values()}
    bindings = [binding for binding in recorded.bindings if id(binding[0]) not in own]
    of_ours = [(tensor, data) for tensor, data, _ in bindings if type(tensor) is XLATensor]
    others = [(tensor, data) for tensor, data, _ in bindings if type(tensor) is not XLATensor]
    tensors = [tensor for tensor, _, _ in bindings]
    # Autograd graphs outside that saved what is written to here must notice; nobody saves the state of optimizers.
    written = {id(source.storage) for source, _ in recorded.writes if isinstance(source, State)}
    return Watched(
        [tensor for tensor, _ in of_ours],
        [data for _, data in of_ours],
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
    """One list of all storages that take part: of state, then of arguments, then of gradients.

    state: the first ones; arguments: the indices of arguments whose storages follow; gradients: picks those behind. index: of each source
    in the list. inputs: indices of the program's inputs; avals, shardings: what those must have (None: one device). donated: inputs, by
    number, that the program takes over.
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


def storages(recorded: Recorded, over_mesh: bool) -> Storages:
    """The storages that take part in a call. over_mesh: in SPMD mode."""
    run = recorded.run
    sources = [*recorded.sources, *[source for source, _ in recorded.writes]]
    sources += [origin for origin in _origins(recorded) if origin is not None and not isinstance(origin, Result)]
    views = [item.storage for item in recorded.results if isinstance(item, ViewOf)]
    sources += [storage for storage in views if not isinstance(storage, NewStorage)]
    state = dict.fromkeys(source for source in sources if isinstance(source, State))
    arguments = dict.fromkeys(source for source in sources if isinstance(source, Argument))
    gradients = dict.fromkeys(source for source in sources if isinstance(source, Gradient))
    ordered: list[Source] = [*state, *arguments, *gradients]
    index = {source: number for number, source in enumerate(ordered)}
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
        picker([inputs[number] for number in donated]),
    )


def _origins(recorded: Recorded) -> list[Origin | None]:
    """Of all values that a call puts somewhere."""
    return [*[origin for _, origin in recorded.writes], *recorded.new, *[leaf.origin for leaf in recorded.leaves]]


def _shared_results(recorded: Recorded) -> set[int]:
    """Results that several storages take, which then have one value in common."""
    indices = [origin.index for origin in _origins(recorded) if isinstance(origin, Result)]
    return {index for index in indices if indices.count(index) > 1}


@dataclass(frozen=True, slots=True)
class Writing:
    """The storages that have another value afterwards, by index.

    taken_over, renewed: their values change, where nobody else has those; the former's buffers the program takes over. others: they get
    values of these origins. copied: inputs, by number, that the program takes over while their storages keep what they have.
    """

    taken_over: Writes
    renewed: Writes
    others: list[tuple[int, Origin]]
    copied: list[int]


def writing(recorded: Recorded, parts: Storages) -> Writing:
    """How a call writes to storages."""
    donated = {parts.inputs[number] for number in parts.donated}
    needed = {parts.index[origin] for origin in _origins(recorded) if origin is not None and not isinstance(origin, Result)}
    shared = _shared_results(recorded)
    taken_over: list[tuple[int, int]] = []
    renewed: list[tuple[int, int]] = []
    others: list[tuple[int, Origin]] = []
    for source, origin in recorded.writes:
        index = parts.index[source]
        if not isinstance(origin, Result) or origin.index in shared or index in needed:
            others.append((index, origin))
        else:
            (taken_over if index in donated else renewed).append((index, origin.index))
    # Whose old value goes, and is not replaced: a gradient that the call lets go of, which others may hold.
    written = {parts.index[source] for source, _ in recorded.writes}
    copied = [number for number in parts.donated if parts.inputs[number] not in written]
    return Writing(Writes(taken_over), Writes(renewed), others, copied)


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients around a call.

    leaves: the tensors that get some; without: which of them had none. fresh: those to which the call gives a new one, with functions that
    pick their gradients and their results, and the avals of these; dropped: tensors whose gradient goes.
    """

    leaves: list[torch.Tensor]
    without: list[bool]
    fresh: list[Leaf]
    pick_fresh: Pick
    results: list[int]
    pick_results: Pick
    avals: list[Aval | None]
    dropped: list[torch.Tensor]


def gradients(recorded: Recorded) -> Gradients:
    """The gradients that a call makes, takes and drops."""
    shared = _shared_results(recorded)
    fresh = [leaf for leaf in recorded.leaves if leaf.fresh]
    whole = [leaf.origin.index for leaf in fresh if isinstance(leaf.origin, Result) and leaf.spec is None]
    alone = [index for index in whole if index not in shared]
    results = recorded.run.graph.parts.results
    return Gradients(
        [leaf.tensor for leaf in recorded.leaves],
        [not leaf.before for leaf in recorded.leaves],
        fresh,
        picker([number for number, leaf in enumerate(recorded.leaves) if leaf.fresh]),
        alone,
        picker(alone),
        [results[index] for index in alone],
        [leaf.tensor for leaf in recorded.leaves if leaf.before and not leaf.after],
    )


@dataclass(slots=True, eq=False)
class Count:
    """Step counts that are equal: `arrays` show their memory, `now` is what all of them were when read last, `advance` what a call adds."""

    symbol: Symbol
    tensors: list[torch.Tensor]
    arrays: list[Any]
    now: float
    advance: float

    def read(self) -> bool:
        """Read them: programs for other arguments, recorded calls and users count on, too. Whether they are still equal."""
        counts = list(map(np.ndarray.item, self.arrays))
        self.now = counts[0]
        return counts.count(self.now) == len(counts)


def _counts(counters: list[Counter]) -> list[Count]:
    by_symbol: dict[Symbol, list[Counter]] = {}
    for counter in counters:
        by_symbol.setdefault(counter.symbol, []).append(counter)
    return [
        Count(
            symbol,
            [counter.tensor for counter in alike],
            [counter.tensor.numpy() for counter in alike],
            alike[0].end,
            alike[0].advance,
        )
        for symbol, alike in by_symbol.items()
    ]


@dataclass(slots=True)
class Numbers:
    """How the numbers of the program are computed from hyperparameters and step counts.

    outcomes: of the comparisons that the step's Python made. floats, fixed_floats: of the program, as they are now.
    """

    counts: list[Count]
    hyperparameters: Callable[[], Any]
    formulas: Formulas
    outcomes: list[bool]
    floats: list[float]
    fixed_floats: list[float]
    _last: list[float] = field(default_factory=list)

    def read(self) -> bool:
        """Read hyperparameters and step counts; whether the step's Python would go the same way with them."""
        if not all(map(Count.read, self.counts)):
            return False
        values = [*self.hyperparameters(), *[count.now for count in self.counts]]
        if values == self._last or not values:
            return True
        if not all([isinstance(value, float) for value in values]):
            return False
        evaluated = self.formulas.evaluate(list(map(float, values)))
        if evaluated is None:
            return False
        outcomes, self.floats, self.fixed_floats = evaluated
        self._last = values if outcomes == self.outcomes else []
        return bool(self._last)


def numbers(recorded: Recorded) -> Numbers:
    """The numbers of a call."""
    counts = _counts(recorded.counters)
    inputs, known = recorded.run.inputs, recorded.run.expressions
    floats = [known.get((False, index), number) for index, number in enumerate(inputs.floats)]
    fixed = [known.get((True, index), number) for index, number in enumerate(inputs.fixed_floats)]
    symbols = [*recorded.hyperparameters, *[count.symbol for count in counts]]
    return Numbers(
        counts,
        reader([stepped.optimizer for stepped in recorded.stepped], recorded.hyperparameters),
        Formulas(symbols, [made.expression for made in recorded.comparisons], floats, fixed),
        [made.outcome for made in recorded.comparisons],
        inputs.floats,
        inputs.fixed_floats,
    )
