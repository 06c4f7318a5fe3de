"""Records a call of a function while it runs as always, and collects what is needed to repeat it without its Python."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import torch

from xla_core.base.private_torch import TreeSpec, tree_flatten
from xla_core.engine.graph import rng
from xla_core.engine.placement.sharding import Sharding
from xla_core.engine.runtime import resharding
from xla_core.engine.tensor.plain import ours, storage_of, tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tracing.numbers import Comparison, Symbol
from xla_core.engine.tracing.origins import Argument, ArgumentItself, Constant, Gradient, NewStorage, Origin, Result, Source, State, ViewOf
from xla_core.features.captured.arguments import Arguments
from xla_core.features.captured.optimizers import Counter, Stepped, hyperparameters
from xla_core.features.captured.python_state import PythonState
from xla_core.features.captured.returned import Existing
from xla_core.features.captured.search import python_state
from xla_core.features.captured.tape import Run, Tape


@dataclass(slots=True, eq=False)
class GradientLeaf:
    """A tensor that gets gradients. before, after: whether it had one; fresh: the call gave it a new gradient tensor, from `origin`."""

    tensor: torch.Tensor
    before: bool
    after: bool
    fresh: bool = False
    spec: Any = None
    origin: Origin | None = None
    sharding: Sharding | None = None


@dataclass(slots=True, eq=False)
class Recorded:
    """A recorded call of a function.

    number: of the call, from 1. sources: where the program's buffers come from, in order; writes: storages that get another value; new: the
    values of the results' new storages. bindings: tensors, the data that they showed, and whether they required gradients; hosts: CPU
    tensors and their versions. seeds, steps: how far the random state moved on. stepped_slots: ranges of slots that optimizers recorded.
    """

    number: int
    run: Run
    sources: list[Source]
    writes: list[tuple[Source, Origin]]
    leaves: list[GradientLeaf]
    new: list[Origin]
    shardings: list[Sharding | None]
    results: list[Any]
    tree: TreeSpec
    bindings: list[tuple[torch.Tensor, Any, bool]]
    stepped: list[Stepped]
    comparisons: list[Comparison]
    state: PythonState
    seeds: int
    steps: int
    hosts: list[tuple[torch.Tensor, int]]
    stepped_slots: list[tuple[int, int]]

    @property
    def counters(self) -> list[Counter]:
        """All step counts."""
        return [counter for stepped in self.stepped for counter in stepped.counters.values()]

    @property
    def hyperparameters(self) -> dict[Symbol, float]:
        """The hyperparameters of all optimizers before the call."""
        return {symbol: value for stepped in self.stepped for symbol, value in stepped.numbers.items()}


class CallRecording:
    """Follows a call from before its first operation to after its sync. number: of the call; leaves: of an earlier call."""

    def __init__(self, tape: Tape, number: int, roots: list[tuple[str, Any]], arguments: Arguments, leaves: list[GradientLeaf]) -> None:
        self.tape = tape
        self.number = number
        self.arguments = arguments
        self.problems = tape.problems
        self._roots = roots
        self._before = python_state(roots)
        self._seed = tape.recorder.seed
        self._leaves: dict[int, torch.Tensor] = {}
        self._grads: dict[int, weakref.ref[torch.Tensor]] = {}
        for leaf in (*(leaf.tensor for leaf in leaves), *_parameters(self._before)):
            self._leaf(leaf)
        for storage in arguments.storages:
            tape.touch(storage)

    def _leaf(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._leaves and tensor.requires_grad and tensor.is_leaf and tensor_behind(tensor) is not None:
            self._leaves[id(tensor)] = tensor
            if tensor.grad is not None:
                self._grads[id(tensor)] = weakref.ref(tensor.grad)
                self.tape.touch(ours(tensor.grad)._storage)

    def finish(self, outcome: Any) -> Recorded | None:
        """Describe the call, after its program was launched. None if it cannot be captured: `problems` says why."""
        tape = self.tape
        for tensor in tape.taken():
            self._leaf(tensor)
        if len(tape.runs) != 1:
            self.problems.append(_not_one(tape.runs))
        changed = self._before.changed()
        if changed is not None:
            self.problems.append(
                f"it changes {changed}, which a captured call would not do: change that outside, or keep it in a tensor on the device"
            )
        self._look_at_optimizers()
        if self.problems:
            return None
        recorded = _CallOutcome(self, tape.runs[0], list(self._leaves.values()), self._grads).recorded(outcome)
        return None if self.problems else recorded

    def state(self) -> PythonState:
        """The Python state after the call, with the modules and optimizers that took part."""
        named = [(type(module).__name__, module) for module in self.tape.modules.values()]
        stepped = [(type(item.optimizer).__name__, item.optimizer) for item in self.tape.watch.stepped.values()]
        return python_state([*self._roots, *named, *stepped])

    def seeds(self, run: Run) -> tuple[int, int]:
        """How many seeds the call drew from the device, and how many steps it made."""
        seed = self._seed
        for drawn in run.inputs.seeds:
            if drawn != seed:
                break
            seed = rng.moved_on(seed)
        else:
            for steps in range(1, _MOST_STEPS):
                seed = rng.past_step(seed)
                if seed == self.tape.recorder.seed:
                    return len(run.inputs.seeds), steps
        self.problems.append(
            "it sets the random state, or draws random numbers from a generator of its own: leave that to the device's state, "
            "which torch.manual_seed sets before the call"
        )
        return 0, 0

    def _look_at_optimizers(self) -> None:
        for stepped in self.tape.watch.stepped.values():
            seen = [*stepped.seen, hyperparameters(stepped.optimizer)]
            for symbol, value in stepped.numbers.items():
                now = next((values for values in seen if values.get(symbol) != value), None)
                if now is not None:
                    self.problems.append(
                        f"it changes {symbol.name} from {value} to {now.get(symbol)}: call schedulers, and change hyperparameters, "
                        "before or behind the call"
                    )


_MOST_STEPS = 4


def _not_one(runs: list[Run]) -> str:
    if not runs:
        return "it computes nothing on the device"
    return (
        f"it runs {len(runs)} programs: leave out torch_xla.sync(), xm.mark_step() and optimizer_step(barrier=True) inside, "
        "as well as what needs a value at once (print, a shape that depends on data, an operation without a lowering)"
    )


def _parameters(state: PythonState) -> Iterator[torch.Tensor]:
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
    for module in state.modules:
        yield from (parameter for parameter in module._parameters.values() if parameter is not None)


class _CallOutcome:
    """Finds where a program's inputs come from, and which storages took its results."""

    def __init__(self, recording: CallRecording, run: Run, leaves: list[torch.Tensor], grads: dict[int, weakref.ref[torch.Tensor]]) -> None:
        self.recording, self.tape, self.run = recording, recording.tape, run
        self.problems = recording.problems
        self.leaves = leaves
        self._grads = grads
        self._before: dict[int, Source] = {}  # by buffer
        self._sources: dict[int, Source] = {}  # by storage
        self._results = {id(buffer): Result(index) for index, buffer in enumerate(run.results)}
        self._sunk: set[int] = set()
        self._new: dict[int, int] = {}
        self._kept: list[Storage] = []
        self._fresh: set[int] = set()  # storages of new gradients
        # Keeps storages alive, so that their ids stay theirs.
        self._alive = list(self.tape.touched)
        self._name_sources()

    def _name_sources(self) -> None:
        for index, storage in enumerate(self.recording.arguments.storages):
            self._sources.setdefault(id(storage), Argument(index))
        for index, leaf in enumerate(self.leaves):
            gradient = None if leaf.grad is None else tensor_behind(leaf.grad)
            if gradient is not None and not self.tape.born(gradient._storage):
                self._sources.setdefault(id(gradient._storage), Gradient(index))
        for storage in self._alive:
            if not self.tape.born(storage):
                self._sources.setdefault(id(storage), State(storage))
                buffer = self.tape.touched[storage].buffer
                if buffer is not None:
                    self._before.setdefault(id(buffer), self._sources[id(storage)])

    def recorded(self, outcome: Any) -> Recorded:
        """Describe the call. Adds to `problems` what cannot be captured."""
        flat, tree = tree_flatten(outcome)
        results = [self._outcome(item) for item in flat]
        leaves = [self._gradient(leaf) for leaf in self.leaves]
        reachable = {id(storage) for storage in self._kept} | self._fresh
        writes, strays = [], []
        for storage in self._alive:
            touched = self.tape.touched[storage]
            if storage.value.buffer is touched.buffer and not touched.born:
                continue
            if touched.born:
                if id(storage) not in reachable:
                    strays.append(weakref.ref(storage))
                continue
            origin = self._origin(storage)
            if origin is not None:
                writes.append((self._sources[id(storage)], origin))
        new = [self._origin(storage) for storage in self._kept]
        sources = [self._source(buffer) for buffer in self.run.inputs.buffers]
        self._look_for_unseen()
        self._look_at_strays(strays)
        seeds, steps = self.recording.seeds(self.run)
        return Recorded(
            number=self.recording.number,
            run=self.run,
            sources=[source for source in sources if source is not None],
            writes=writes,
            leaves=leaves,
            new=[origin for origin in new if origin is not None],
            shardings=[resharding.requested_sharding(storage) for storage in self._kept],
            results=results,
            tree=tree,
            bindings=self._bindings(),
            stepped=list(self.tape.watch.stepped.values()),
            comparisons=list(dict.fromkeys(self.tape.tracer.comparisons)),
            state=self.recording.state(),
            seeds=seeds,
            steps=steps,
            hosts=self._hosts(),
            stepped_slots=self.tape.watch.slots,
        )

    def _outcome(self, item: Any) -> Any:
        """Where a returned object comes from."""
        if not isinstance(item, torch.Tensor):
            for index, passed in enumerate(self.recording.arguments.objects):
                if passed is item:
                    return ArgumentItself(index)
            if not isinstance(item, _PLAIN):
                self.problems.append(
                    f"it returns {type(item).__name__}: return tensors, numbers, texts and arguments, in tuples, lists and dicts"
                )
            return Constant(item)
        xla_tensor = tensor_behind(item)
        if xla_tensor is None:
            self.problems.append(f"it returns a {type(item).__name__} on {item.device}: return tensors of the device")
            return Constant(None)
        for index, tensor in enumerate(self.recording.arguments.tensors):
            if tensor is item:
                return Existing(index)
        if not self.tape.was_made(item) and not self.tape.born(xla_tensor._storage):
            return Existing(None, id(item), item)
        if item.requires_grad:
            self.problems.append(
                f"it returns a tensor of shape {tuple(item.shape)} that requires a gradient: return it detached, and capture the whole "
                "step, backward included, or call it under torch.no_grad()"
            )
        if not self.tape.born(xla_tensor._storage):
            return ViewOf(self._source_of(xla_tensor._storage), xla_tensor._view)
        index = self._new.setdefault(id(xla_tensor._storage), len(self._kept))
        if index == len(self._kept):
            self._kept.append(xla_tensor._storage)
        return ViewOf(NewStorage(index), xla_tensor._view)

    def _source_of(self, storage: Storage) -> Source:
        return self._sources.setdefault(id(storage), State(storage))

    def _gradient(self, tensor: torch.Tensor) -> GradientLeaf:
        entry = self._grads.get(id(tensor))
        leaf = GradientLeaf(tensor, entry is not None, tensor.grad is not None)
        gradient = None if tensor.grad is None else tensor_behind(tensor.grad)
        if gradient is None or (entry is not None and entry() is tensor.grad):
            return leaf
        if tensor.grad is not None and tensor.grad.requires_grad:
            self.problems.append("it leaves gradients that have a history (create_graph=True): return what you need of them, detached")
        if any(tensor is argument for argument in self.recording.arguments.tensors):
            self.problems.append("it leaves a gradient on an argument: return it, from torch.autograd.grad")
        leaf.fresh, leaf.spec, leaf.origin = True, gradient._view, self._origin(gradient._storage)
        leaf.sharding = resharding.requested_sharding(gradient._storage)
        self._fresh.add(id(gradient._storage))
        return leaf

    def _origin(self, storage: Storage) -> Origin | None:
        """Where the present value of a storage comes from."""
        buffer = storage.value.buffer
        result = self._results.get(id(buffer))
        if result is not None:
            self._sunk.add(result.index)
            return result
        source = self._before.get(id(buffer))
        if source is None:
            self.problems.append(
                f"a tensor of shape {storage.value.aval.shape} has data from the host, or was left pending: make constants before the call"
            )
        return source

    def _source(self, buffer: jax.Array) -> Source | None:
        source = self._before.get(id(buffer))
        if source is None:
            self.problems.append(
                f"it takes {buffer.dtype}{list(buffer.shape)}, which was made of host data inside: make constants before the call"
            )
        return source

    def _look_at_strays(self, strays: list[weakref.ref[Storage]]) -> None:
        """Report new tensors that someone still holds."""
        self._alive.clear()
        if strays:
            gc.collect()  # cycles may keep them
        for reference in strays:
            storage = reference()
            if storage is None or storage.value.buffer is None:
                continue
            result = self._results.get(id(storage.value.buffer))
            line = None if result is None else self.run.graph.line(self.run.graph.outs[result.index])
            self.problems.append(
                f"a new tensor of shape {storage.value.aval.shape}{f' (made at {line})' if line else ''} is kept after the call, but not "
                "returned: return it, or write to a tensor that is there before the call, with copy_()"
            )

    def _look_for_unseen(self) -> None:
        """Report results in storages that no recorded operation touched."""
        missing = {id(buffer): index for index, buffer in enumerate(self.run.results) if index not in self._sunk}
        if missing:
            followed = {id(storage) for storage in self._alive}
            for storage in gc.get_objects():
                if type(storage) is Storage and id(storage) not in followed and id(storage.value.buffer) in missing:
                    self.problems.append(f"a tensor of shape {storage.value.aval.shape} was written to in a way that could not be followed")

    def _bindings(self) -> list[tuple[torch.Tensor, Any, bool]]:
        bindings: list[tuple[torch.Tensor, Any, bool]] = []
        seen = {id(tensor) for tensor in self.recording.arguments.tensors}
        for tensor in (*self.leaves, *self.tape.taken()):
            xla_tensor = tensor_behind(tensor)
            if xla_tensor is None or id(tensor) in seen or self.tape.was_made(tensor) or self.tape.born(xla_tensor._storage):
                continue
            if isinstance(self._sources.get(id(xla_tensor._storage)), State):
                seen.add(id(tensor))
                bindings.append((tensor, bound(tensor), tensor.requires_grad))
        return bindings

    def _hosts(self) -> list[tuple[torch.Tensor, int]]:
        hosts = []
        for reference, version, stepping in self.tape.hosts.values():
            tensor = reference()
            if tensor is not None:
                hosts.append((tensor, version))
            elif stepping:
                self.problems.append("an optimizer makes CPU tensors inside of step: construct it with capturable=True if it has that")
        return hosts


_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def bound(tensor: torch.Tensor) -> Any:
    """An object that is replaced when the tensor shows other data."""
    return tensor._storage if type(tensor) is XLATensor else storage_of(tensor)
