"""Launch what was captured: check that all is as it was recorded, run the program, put the results where the recorded ones went."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, gt, is_
from typing import Any

import jax
import numpy as np
import torch
from torch.autograd.graph import increment_version

from xla_core.base.metrics import Cause
from xla_core.base.private_torch import tree_unflatten
from xla_core.engine.graph.graph import Inputs
from xla_core.engine.graph.pending_graph import Recorder, Value, buffer_value
from xla_core.engine.placement.sharding import Sharding
from xla_core.engine.runtime import executor, resharding
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.tensor.plain import ours, storage_of
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor, rebound, view_of
from xla_core.engine.tracing.numbers import Formulas, Symbol, picker
from xla_core.features.captured.arguments import Arguments
from xla_core.features.captured.holders import Writes, holders, holders_of_one, nobody_else_has, renew
from xla_core.features.captured.optimizers import Counter, reader
from xla_core.features.captured.places import Argument, Gradient, Held, New, Origin, Passed, Place, Result, Same, Shown
from xla_core.features.captured.recording import Recorded, bound

_value = attrgetter("value")
_buffer = attrgetter("buffer")
_aval = attrgetter("aval")
_shared = attrgetter("shared")
_sharding = attrgetter("sharding")
_requires_grad = attrgetter("requires_grad")
_grad = attrgetter("grad")
_version = attrgetter("_version")
_storage = attrgetter("_storage")
_view = attrgetter("_view")


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


class Captured:
    """A captured call: a program, where its inputs are, and where its results go. counts: step counts on the CPU."""

    def __init__(self, recorder: Recorder, recorded: Recorded) -> None:
        self.recorder, self.recorded = recorder, recorded
        run = recorded.run
        self.graph, self.program = run.graph, run.program
        self._name_storages(recorded)
        self._name_writes(recorded)
        self._name_tensors(recorded)
        self._leaves = [leaf.tensor for leaf in recorded.leaves]
        self._without = [not leaf.before for leaf in recorded.leaves]
        self._name_gradients(recorded)
        self._hosts = [tensor for tensor, _ in recorded.hosts]
        self._host_versions = [version for _, version in recorded.hosts]
        self._name_numbers(recorded)

    def _name_tensors(self, recorded: Recorded) -> None:
        """The tensors that must show the data that they showed."""
        # Those of optimizers' states are many: it is enough to know that no tensor at all was given other data.
        own = {id(item) for stepped in recorded.stepped for state in stepped.optimizer.state.values() for item in state.values()}
        self._rebound = rebound()
        watched = [item for item in recorded.bindings if id(item[0]) not in own]
        self._ours = [tensor for tensor, _, _ in watched if type(tensor) is XLATensor]
        self._ours_held = [held for tensor, held, _ in watched if type(tensor) is XLATensor]
        self._plain = [tensor for tensor, _, _ in watched if type(tensor) is not XLATensor]
        self._plain_held = [held for tensor, held, _ in watched if type(tensor) is not XLATensor]
        self._wanted = [tensor for tensor, _, _ in watched]
        self._want = [wants for _, _, wants in watched]
        # Autograd graphs outside that saved what is written to here must notice; nobody saves the state of optimizers.
        written = {id(place.storage) for place, _ in recorded.writes if isinstance(place, Held)}
        self._counted = [tensor for tensor in self._wanted if id(ours(tensor)._storage) in written]

    def _name_numbers(self, recorded: Recorded) -> None:
        """How the numbers of the program are computed from hyperparameters and step counts."""
        self.counts = _counts(recorded.counters)
        self._read = reader([stepped.optimizer for stepped in recorded.stepped], recorded.hyperparameters)
        self._last: list[float] = []
        symbols = [*recorded.hyperparameters, *[count.symbol for count in self.counts]]
        inputs, known = recorded.run.inputs, recorded.run.expressions
        floats = [known.get((False, place), number) for place, number in enumerate(inputs.floats)]
        fixed = [known.get((True, place), number) for place, number in enumerate(inputs.fixed_floats)]
        self._formulas = Formulas(symbols, [made.expression for made in recorded.comparisons], floats, fixed)
        self._outcomes = [made.outcome for made in recorded.comparisons]
        self._floats, self._fixed_floats = inputs.floats, inputs.fixed_floats
        self._ints, self._fixed_ints = inputs.ints, inputs.fixed_ints

    def _name_storages(self, recorded: Recorded) -> None:
        """One list of all storages that take part: those held, then arguments, then gradients; and where the inputs are in it."""
        origins = [origin for _, origin in recorded.writes] + recorded.new + [leaf.origin for leaf in recorded.leaves]
        places = [*recorded.sources, *[place for place, _ in recorded.writes], *[item for item in origins if not isinstance(item, Result)]]
        places += [item.place for item in recorded.results if isinstance(item, Shown)]
        held = dict.fromkeys(place for place in places if isinstance(place, Held))
        given = dict.fromkeys(place for place in places if isinstance(place, Argument))
        gradients = dict.fromkeys(place for place in places if isinstance(place, Gradient))
        self._held = [place.storage for place in held]
        self._argument_numbers = [place.number for place in given]
        self._pick_gradients = picker([place.number for place in gradients])
        ordered: list[Place] = [*held, *given, *gradients]
        self._number = {place: number for number, place in enumerate(ordered)}
        self._sources = [self._number[place] for place in recorded.sources]
        self._pick_sources = picker(self._sources)
        self._shardings = [buffer.sharding for buffer in recorded.run.inputs.buffers] if placement_of(self.recorder).is_mesh else None
        self._avals = list(recorded.run.graph.parts.leaves)
        self._donated = (recorded.run.program.changed or recorded.run.graph).parts.donated
        self._pick_donated = picker([self._sources[number] for number in self._donated])
        graph = recorded.run.graph
        self._result_avals: list[Any] = list(graph.parts.results)

    def _name_writes(self, recorded: Recorded) -> None:
        """Writes of results change the values that storages have, where nobody else has those; the others make new ones."""
        donated = {self._sources[number] for number in self._donated}
        origins = [origin for _, origin in recorded.writes] + recorded.new + [leaf.origin for leaf in recorded.leaves]
        needed = {self._number[origin] for origin in origins if origin is not None and not isinstance(origin, Result)}
        shared = _shared_results(recorded)
        taken_over: list[tuple[int, int]] = []
        renewed: list[tuple[int, int]] = []
        self._written: list[tuple[int, Origin]] = []
        for place, origin in recorded.writes:
            number = self._number[place]
            if not isinstance(origin, Result) or origin.number in shared or number in needed:
                self._written.append((number, origin))
            else:
                (taken_over if number in donated else renewed).append((number, origin.number))
        self._taken_over, self._renewed = Writes(taken_over), Writes(renewed)
        # Whose old value goes, and is not replaced: a gradient that the call lets go of, which others may hold.
        written = {self._number[place] for place, _ in recorded.writes}
        self._copied = [number for number in self._donated if self._sources[number] not in written]

    def _name_gradients(self, recorded: Recorded) -> None:
        """The gradients that a call makes."""
        shared = _shared_results(recorded)
        self._fresh = [leaf for leaf in recorded.leaves if leaf.fresh]
        self._pick_fresh = picker([number for number, leaf in enumerate(recorded.leaves) if leaf.fresh])
        self._dropped = [leaf.tensor for leaf in recorded.leaves if leaf.before and not leaf.after]
        self._fresh_results: list[int] = []
        for leaf in self._fresh:
            if isinstance(leaf.origin, Result) and leaf.origin.number not in shared and leaf.spec is None:
                self._fresh_results.append(leaf.origin.number)
        self._pick_fresh_results = picker(self._fresh_results)
        self._fresh_avals = [self._result_avals[number] for number in self._fresh_results]

    def ready(self, arguments: Arguments) -> Ready | None:
        """What the program needs, if all but the data is as it was recorded: Python objects, gradients, what shows which data."""
        if not all(map(is_, map(_storage, self._ours), self._ours_held)) or not all(
            map(is_, map(storage_of, self._plain), self._plain_held)
        ):
            return None
        if self._rebound != rebound() and not self._still_bound():
            return None
        if list(map(_requires_grad, self._wanted)) != self._want or list(map(_version, self._hosts)) != self._host_versions:
            return None
        grads = list(map(_grad, self._leaves))
        if list(map(is_, grads, repeat(None))) != self._without or not self.recorded.state.unchanged():
            return None
        if not all(map(Count.read, self.counts)) or not self._read_numbers():
            return None
        storages = [*self._held, *self._storages_of(arguments, grads)]
        values = list(map(_value, storages))
        taken = self._pick_sources(values)
        buffers = list(map(_buffer, taken))
        fits = list(map(_aval, taken)) == self._avals and not any(map(is_, buffers, repeat(None)))
        return Ready(storages, values, buffers, grads) if fits and self._shardings_fit(buffers) else None

    def _still_bound(self) -> bool:
        """Whether optimizers' states show the data that they showed, after some tensor was given other data."""
        self._rebound = rebound()
        return all(bound(tensor) is held for tensor, held, _ in self.recorded.bindings)

    def _storages_of(self, arguments: Arguments, grads: list[Any]) -> list[Storage]:
        """The storages of the places that are found anew at each call."""
        found = [arguments.storages[number] for number in self._argument_numbers]
        shown = self._pick_gradients(grads)
        if not all(map(is_, map(type, shown), repeat(XLATensor))):
            shown = [ours(grad) for grad in shown]
        found.extend(map(_storage, shown))
        return found

    def _shardings_fit(self, buffers: list[jax.Array]) -> bool:
        return self._shardings is None or list(map(_sharding, buffers)) == self._shardings

    def _read_numbers(self) -> bool:
        """Read hyperparameters and step counts; whether the step's Python would go the same way with them."""
        values = [*self._read(), *[count.now for count in self.counts]]
        if values == self._last or not values:
            return True
        if not all(map(isinstance, values, repeat(float))):
            return False
        found = self._formulas.evaluate(list(map(float, values)))
        if found is None:
            return False
        outcomes, self._floats, self._fixed_floats = found
        self._last = values if outcomes == self._outcomes else []
        return bool(self._last)

    def launch(self, ready: Ready, arguments: Arguments, line: str | None) -> Any:
        """Run it, and give what the function would have returned. Under the lock of the device, right behind `ready`."""
        recorder, values, buffers = self.recorder, ready.values, ready.buffers
        # Who else has a value that is about to be given away keeps it: the program gets a copy.
        given = self._pick_donated(values)
        alone = not self._copied and nobody_else_has(given)
        if not alone:
            for number in self._donated:
                buffers[number] = buffers[number].copy()
        seeds = [recorder.draw() for _ in range(self.recorded.seeds)]
        inputs = Inputs(buffers, self._floats, self._fixed_floats, self._ints, self._fixed_ints, seeds)
        results: list[Any] = []

        def keep(computed: list[jax.Array]) -> None:
            results.extend(self._store(computed, ready, arguments, alone))

        executor.launch(recorder, placement_of(recorder), self.program, self.graph, inputs, keep, Cause.CAPTURED, line)
        for _ in range(self.recorded.steps):
            recorder.end_step()
        increment_version(self._counted)
        return tree_unflatten(results, self.recorded.tree)

    def _store(self, computed: list[jax.Array], ready: Ready, arguments: Arguments, alone: bool) -> list[Any]:
        """Put results where they belong; the returned objects."""
        made: dict[int, Value] = {}

        def value_of(origin: Origin) -> Value:
            if not isinstance(origin, Result):
                return ready.values[self._number[origin]]
            value = made.get(origin.number)
            if value is None:
                value = made[origin.number] = buffer_value(self.recorder, self._result_avals[origin.number], computed[origin.number])
            return value

        # Before anything is written: one place may take the old value of another.
        written = [(number, value_of(origin)) for number, origin in self._written]
        for writes, free in ((self._taken_over, alone), (self._renewed, None)):
            values = writes.pick_values(ready.values)
            if free or (free is None and nobody_else_has(values)):
                renew(values, writes.pick_results(computed))
            else:
                written += [(number, value_of(Result(result))) for number, result in writes.pairs]
        new = [_storage_of(value_of(origin), sharding) for origin, sharding in zip(self.recorded.new, self.recorded.shardings, strict=True)]
        if not self._gradients_renewed(ready, computed):
            fresh = [value_of(leaf.origin) for leaf in self._fresh if leaf.origin is not None]
            for value, leaf in zip(fresh, self._fresh, strict=True):
                leaf.tensor.grad = view_of(_storage_of(value, leaf.sharding), leaf.spec)
        for tensor in self._dropped:
            tensor.grad = None
        for number, value in written:
            ready.storages[number].value = value
        for count in self.counts:
            count.now += count.advance
            if count.advance:
                deque(map(np.ndarray.fill, count.arrays, repeat(count.now)), maxlen=0)
        return [self._outcome(item, new, ready, arguments) for item in self.recorded.results]

    def _gradients_renewed(self, ready: Ready, computed: list[jax.Array]) -> bool:
        """Change the data of the gradients that are there, if nobody can tell them from the new tensors that the function would make."""
        if len(self._fresh_results) < len(self._fresh):
            return False
        grads = self._pick_fresh(ready.grads)
        if not all(map(is_, map(type, grads), repeat(XLATensor))) or not all(map(is_, map(_view, grads), repeat(None))):
            return False
        if any(map(gt, holders(grads), holders_of_one())):
            return False
        values = list(map(_value, map(_storage, grads)))
        if list(map(_aval, values)) != self._fresh_avals or any(map(_shared, values)):
            return False
        renew(values, self._pick_fresh_results(computed))
        return True

    def _outcome(self, item: Any, new: list[Storage], ready: Ready, arguments: Arguments) -> Any:
        if isinstance(item, New):
            return view_of(new[item.number], item.spec)
        if isinstance(item, Shown):
            return view_of(ready.storages[self._number[item.place]], item.spec)
        if isinstance(item, Same):
            return item.found if item.place is None else arguments.tensors[item.place]
        if isinstance(item, Passed):
            return arguments.objects[item.number]
        return item.value


@dataclass(slots=True)
class Ready:
    """What a captured call found: all storages that take part, their values, the program's buffers, the gradients of all leaves."""

    storages: list[Storage]
    values: list[Value]
    buffers: list[Any]
    grads: list[Any]


def _storage_of(value: Value, sharding: Sharding | None) -> Storage:
    storage = Storage()
    storage.value = value
    storage.annotations = None
    if sharding is not None:
        resharding.set_sharding(storage, sharding)
    return storage


def _shared_results(recorded: Recorded) -> set[int]:
    """Results that several places take, which then have one value in common."""
    seen: set[int] = set()
    twice: set[int] = set()
    for origin in (*[origin for _, origin in recorded.writes], *recorded.new, *[leaf.origin for leaf in recorded.leaves]):
        if isinstance(origin, Result):
            (twice if origin.number in seen else seen).add(origin.number)
    return twice
