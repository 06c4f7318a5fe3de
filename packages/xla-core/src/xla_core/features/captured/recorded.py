"""Describes a recorded call: where its program takes inputs from, where results went, and what the call depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from xla_core.base.private_torch import TreeSpec, tree_unflatten
from xla_core.engine.graph.pending_graph import Value, waits
from xla_core.engine.placement.sharding import Sharding
from xla_core.engine.tensor.plain import storage_of, tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tracing.numbers import Comparison, Symbol
from xla_core.engine.tracing.origins import Gradient, Origin, Source, State, Zeros
from xla_core.features.captured.objects import Objects
from xla_core.features.captured.optimizers import Counter, Stepped
from xla_core.features.captured.places import Place
from xla_core.features.captured.tape import Run


@dataclass(slots=True, eq=False)
class GradientLeaf:
    """A tensor that gets gradients. before, after: whether it had one; fresh: the call gave it a new gradient tensor, from `origin`.

    same_as: an earlier leaf that has the same new gradient tensor.
    """

    tensor: torch.Tensor
    before: bool
    after: bool
    fresh: bool = False
    spec: Any = None
    origin: Origin | None = None
    sharding: Sharding | None = None
    same_as: int | None = None


@dataclass(slots=True, eq=False)
class Recorded:
    """A recorded call of a function.

    number: of the call, from 1. sources: where the program's buffers come from, in order; aliases: those that are one buffer; pinned:
    arguments, by index, whose storages the call finds in another way, too; writes: storages that get another value; required: arguments
    that require gradients since, or not any more; new: the values of the results' new storages. results, tree: of what the call returns,
    and of what it leaves in `places`; left: a name for each of the latter results. bindings: tensors, the data that they showed, and
    whether they required gradients; hosts: CPU tensors and their versions. objects: what the Python read; None for a verified call. passed:
    names of the places whose values are arguments; symbols, numbers: of the numbers among these, and their values. seeds: which of the
    random states that were drawn (`drawn` many) the program takes; steps: how far the state moved on in syncs. stepped_slots: ranges that
    optimizers recorded.
    """

    number: int
    run: Run
    sources: list[Source]
    aliases: list[tuple[Source, Source]]
    pinned: list[tuple[int, Storage]]
    writes: list[tuple[Source, Origin | Zeros]]
    leaves: list[GradientLeaf]
    required: list[tuple[int, bool]]
    new: list[Origin]
    shardings: list[Sharding | None]
    results: list[Any]
    tree: TreeSpec
    places: list[Place]
    left: list[str]
    bindings: list[tuple[torch.Tensor, Any, bool]]
    stepped: list[Stepped]
    comparisons: list[Comparison]
    objects: Objects | None
    passed: list[str]
    symbols: list[Symbol]
    numbers: list[Any]
    seeds: list[int]
    drawn: int
    steps: int
    hosts: list[tuple[torch.Tensor, int]]
    stepped_slots: list[tuple[int, int]]

    def blanks(self) -> list[Value]:
        """Zeros that the call has left, and that are not made yet."""
        storages = []
        for source, origin in self.writes:
            if isinstance(origin, Zeros) and isinstance(source, State):
                storages.append(source.storage)
            elif isinstance(origin, Zeros) and isinstance(source, Gradient):
                grad = tensor_behind(self.leaves[source.index].tensor.grad)
                storages += [] if grad is None else [grad._storage]
        return [storage.value for storage in storages if waits(storage.value)]

    @property
    def returned(self) -> list[Any]:
        """The results that the call returns."""
        return self.results[: len(self.results) - len(self.left)]

    def returned_as(self, leaves: list[Any]) -> Any:
        """What the call returns, with other leaves."""
        return tree_unflatten([*leaves, *self.left], self.tree)[0]

    @property
    def counters(self) -> list[Counter]:
        """All step counts."""
        return [counter for stepped in self.stepped for counter in stepped.counters.values()]

    @property
    def hyperparameters(self) -> dict[Symbol, float]:
        """The hyperparameters of all optimizers before the call."""
        return {symbol: value for stepped in self.stepped for symbol, value in stepped.numbers.items()}


def bound(tensor: torch.Tensor) -> Any:
    """An object that is replaced when the tensor shows other data."""
    return tensor._storage if type(tensor) is XLATensor else storage_of(tensor)
