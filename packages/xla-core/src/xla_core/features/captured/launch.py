"""Launch what was captured: check that all is as it was recorded, run the program, put the results where the recorded ones went."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter, gt, is_
from typing import Any

import jax
import numpy as np
from torch.autograd.graph import increment_version

from xla_core.base.metrics import Cause
from xla_core.base.private_torch import tree_unflatten
from xla_core.engine.graph.graph import Inputs
from xla_core.engine.graph.pending_graph import Recorder, Value, buffer_value, waits
from xla_core.engine.placement.sharding import Sharding
from xla_core.engine.runtime import executor, resharding
from xla_core.engine.runtime.client import placement_of
from xla_core.engine.tensor.handlers.zeros import leave_zeros
from xla_core.engine.tensor.plain import ours, storage_of
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor, rebound, view_of
from xla_core.engine.tracing.origins import ArgumentItself, NewStorage, Result, ViewOf
from xla_core.features.captured.arguments import Arguments
from xla_core.features.captured.differences import Taken
from xla_core.features.captured.guards import Guards
from xla_core.features.captured.holders import holders, holders_of_one, nobody_else_has, renew
from xla_core.features.captured.places import Within
from xla_core.features.captured.plan import Count, gradients, numbers, storages, watched, writing
from xla_core.features.captured.recorded import Recorded, bound
from xla_core.features.captured.results import RETURNED, Again, ArgumentContainer, Computed, Existing, GradientOf

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


class Launch:
    """A captured call: a program, where its inputs are, and where its results go. guards: what must be as it was when it was recorded."""

    def __init__(self, recorder: Recorder, recorded: Recorded, guards: Guards) -> None:
        self.guards = guards
        self._blanks: list[Value] = []
        self._last: jax.Array | None = None
        self.recorder, self.recorded = recorder, recorded
        self._on_host = placement_of(recorder).context.platform == "cpu"
        self.graph, self.program = recorded.run.graph, recorded.run.program
        self._rebound = rebound()
        self._watched = watched(recorded)
        self._storages = storages(recorded, placement_of(recorder).is_mesh)
        self._state_ids = frozenset(map(id, self._storages.state))
        self._writing = writing(recorded, self._storages)
        self._gradients = gradients(recorded)
        self._numbers = numbers(recorded)

    def busy(self) -> bool:
        """Whether an accelerator is computing the last launch. The CPU is none: what Python does meanwhile takes its cores from it."""
        last = self._last
        return not (self._on_host or last is None or last.is_deleted() or last.is_ready())  # type: ignore[attr-defined]

    @property
    def numbers(self) -> Taken:
        """The program's numbers, as `ready` has computed them."""
        return self._numbers.floats, self._numbers.fixed_floats, self._numbers.computed

    @property
    def counts(self) -> list[Count]:
        """The step counts on the CPU."""
        return self._numbers.counts

    def ready(self, arguments: Arguments) -> Ready | None:
        """What the program needs, if all but the data is as it was recorded: Python objects, gradients, what shows which data."""
        watched, parts = self._watched, self._storages
        if not all(map(is_, map(_storage, watched.ours), watched.ours_data)) or not all(
            map(is_, map(storage_of, watched.plain), watched.plain_data)
        ):
            return None
        if not all(map(is_, map(_view, watched.ours), watched.ours_views)) or not self._arguments_apart(arguments):
            return None
        if self._rebound != rebound() and not self._still_bound():
            return None
        if list(map(_requires_grad, watched.tensors)) != watched.wants or list(map(_version, watched.hosts)) != watched.host_versions:
            return None
        grads = list(map(_grad, self._gradients.leaves))
        if list(map(is_, grads, repeat(None))) != self._gradients.without or not self.guards.unchanged():
            return None
        if not self._numbers.read(arguments.numbers):
            return None
        everything = [*parts.state, *self._passed(arguments, grads)]
        values = list(map(_value, everything))
        if any(values[first].buffer is not values[second].buffer for first, second in parts.aliases):
            return None
        taken = parts.pick_inputs(values)
        buffers = list(map(_buffer, taken))
        if any(map(is_, buffers, repeat(None))):
            self._blanks = [value for value in taken if waits(value)]
            return None
        if len(set(map(id, buffers))) < len(buffers):
            return None  # when it was recorded, each input had a buffer of its own
        fits = list(map(_aval, taken)) == parts.avals
        return Ready(everything, values, buffers, grads) if fits and self._shardings_fit(buffers) else None

    def take_blanks(self) -> list[Value]:
        """Zeros because of which `ready` found that the program does not fit, and that are not made yet."""
        blanks, self._blanks = self._blanks, []
        return blanks

    def _arguments_apart(self, arguments: Arguments) -> bool:
        """Whether arguments are tensors that the function also finds elsewhere, or not, as it was recorded."""
        shown = arguments.storages
        return self._state_ids.isdisjoint(map(id, shown)) and all([shown[index] is storage for index, storage in self.recorded.pinned])

    def _still_bound(self) -> bool:
        """Whether optimizers' states show the data that they showed, after some tensor was given other data."""
        self._rebound = rebound()
        return all(bound(tensor) is data for tensor, data, _ in self.recorded.bindings)

    def _passed(self, arguments: Arguments, grads: list[Any]) -> list[Storage]:
        """The storages of arguments and gradients."""
        passed = [arguments.storages[index] for index in self._storages.arguments]
        shown = self._storages.gradients(grads)
        if not all(map(is_, map(type, shown), repeat(XLATensor))):
            shown = [ours(grad) for grad in shown]
        passed.extend(map(_storage, shown))
        return passed

    def _shardings_fit(self, buffers: list[jax.Array]) -> bool:
        shardings = self._storages.shardings
        return shardings is None or list(map(_sharding, buffers)) == shardings

    def launch(self, ready: Ready, arguments: Arguments, line: str | None) -> Any:
        """Run it, and give what the function would have returned. Under the lock of the device, right behind `ready`."""
        recorder, values, buffers, numbers = self.recorder, ready.values, ready.buffers, self._numbers
        # Who else has a value that is about to be given away keeps it: the program gets a copy.
        donated = self._storages.pick_donated(values)
        alone = not self._writing.copied and nobody_else_has(donated)
        if not alone:
            for number in self._storages.donated:
                buffers[number] = buffers[number].copy()
        drawn = [recorder.draw() for _ in range(self.recorded.drawn)]
        seeds = [drawn[number] for number in self.recorded.seeds]
        recorded = self.recorded.run.inputs
        inputs = Inputs(buffers, numbers.floats, numbers.fixed_floats, recorded.ints, recorded.fixed_ints, seeds)
        results: list[Any] = []

        def keep(computed: list[jax.Array]) -> None:
            self._last = computed[-1] if computed else None
            results.extend(self._store(computed, ready, arguments, alone))

        executor.launch(recorder, placement_of(recorder), self.program, self.graph, inputs, keep, Cause.CAPTURED, line)
        for _ in range(self.recorded.steps):
            recorder.end_step()
        increment_version(self._watched.counted)
        if self._writing.arguments:
            increment_version([arguments.tensors[index] for index in self._writing.arguments])
        for index, requires_grad in self.recorded.required:
            arguments.tensors[index].requires_grad_(requires_grad)
        outcome, left = tree_unflatten(results, self.recorded.tree)
        for place, value in zip(self.recorded.places, left, strict=True):
            at = Within(arguments.containers[place.index], place.index) if isinstance(place, Within) else place
            at.put(outcome if value is RETURNED else value)
        return outcome

    def _store(self, buffers: list[jax.Array], ready: Ready, arguments: Arguments, alone: bool) -> list[Any]:
        """Put results where they belong; the returned objects."""
        made: dict[int, Value] = {}
        avals = self.graph.parts.results

        def value_of(origin: Any) -> Value:
            if not isinstance(origin, Result):
                return ready.values[self._storages.index[origin]]
            value = made.get(origin.index)
            if value is None:
                aval: Any = avals[origin.index]
                value = made[origin.index] = buffer_value(self.recorder, aval, buffers[origin.index])
            return value

        # Before anything is written: one storage may take the old value of another.
        written = [(index, value_of(origin)) for index, origin in self._writing.others]
        for writes, free in ((self._writing.taken_over, alone), (self._writing.renewed, None)):
            values = writes.pick_values(ready.values)
            if free or (free is None and nobody_else_has(values)):
                renew(values, writes.pick_results(buffers))
            else:
                written += [(index, value_of(Result(result))) for index, result in writes.pairs]
        new = [_storage_of(value_of(origin), sharding) for origin, sharding in zip(self.recorded.new, self.recorded.shardings, strict=True)]
        if not self._gradients_renewed(ready, buffers):
            leaves = self._gradients.fresh
            fresh = [value_of(leaf.origin) for leaf in leaves if leaf.origin is not None]
            for value, leaf in zip(fresh, leaves, strict=True):
                leaf.tensor.grad = view_of(_storage_of(value, leaf.sharding), leaf.spec)
        for tensor in self._gradients.dropped:
            tensor.grad = None
        for tensor, other in self._gradients.shared:
            tensor.grad = other.grad
        for index, value in written:
            ready.storages[index].value = value
        for index in self._writing.zeroed:
            leave_zeros(ready.storages[index])
        for count in self._numbers.counts:
            count.now += count.advance
            if count.advance:
                deque(map(np.ndarray.fill, count.arrays, repeat(count.now)), maxlen=0)
        computed = iter(self._numbers.computed)
        returned: list[Any] = []
        for item in self.recorded.results:
            returned.append(
                next(computed)
                if isinstance(item, Computed)
                else returned[item.index]
                if isinstance(item, Again)
                else self._returned(item, new, ready, arguments)
            )
        return returned

    def _gradients_renewed(self, ready: Ready, computed: list[jax.Array]) -> bool:
        """Change the data of the gradients that are there, if nobody can tell them from the new tensors that the function would make."""
        gradients = self._gradients
        if len(gradients.results) < len(gradients.fresh):
            return False
        grads = gradients.pick_fresh(ready.grads)
        if not all(map(is_, map(type, grads), repeat(XLATensor))) or not all(map(is_, map(_view, grads), repeat(None))):
            return False
        if any(map(gt, holders(grads), holders_of_one())):
            return False
        values = list(map(_value, map(_storage, grads)))
        if list(map(_aval, values)) != gradients.avals or any(map(_shared, values)):
            return False
        renew(values, gradients.pick_results(computed))
        return True

    def _returned(self, item: Any, new: list[Storage], ready: Ready, arguments: Arguments) -> Any:
        if isinstance(item, ViewOf):
            shown = item.storage
            storage = new[shown.index] if isinstance(shown, NewStorage) else ready.storages[self._storages.index[shown]]
            return view_of(storage, item.spec)
        if isinstance(item, Existing):
            return item.tensor if item.index is None else arguments.tensors[item.index]
        if isinstance(item, ArgumentItself):
            return arguments.objects[item.index]
        if isinstance(item, ArgumentContainer):
            return (arguments.opened if item.opened else arguments.containers)[item.index]
        if isinstance(item, GradientOf):
            return self._gradients.leaves[item.index].grad
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
