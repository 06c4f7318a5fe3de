"""Finds out what a recorded call did: where the inputs of its program came from, and what took its results."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

import jax
import torch

from xla_core.base.private_torch import TreeSpec
from xla_core.engine.graph.aval import Aval
from xla_core.engine.runtime import resharding
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.engine.tracing.numbers import Number
from xla_core.engine.tracing.origins import (
    Argument,
    ArgumentItself,
    Constant,
    Gradient,
    NewStorage,
    Origin,
    Result,
    Source,
    State,
    ViewOf,
    Zeros,
)
from xla_core.features.captured import results
from xla_core.features.captured.places import ABSENT
from xla_core.features.captured.recorded import GradientLeaf, Recorded, bound
from xla_core.features.captured.recording import CallRecording
from xla_core.features.captured.results import RETURNED, Again, ArgumentContainer, Computed, Existing, GradientOf
from xla_core.features.captured.tape import Run
from xla_core.features.captured.writes import Write

PLAIN_CLASSES = (XLATensor, torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
NOTHING_COMPUTED = "it computes nothing on the device"


def describe(recording: CallRecording, outcome: Any) -> Recorded | None:
    """Describe a call, after its program was launched. outcome: its result. None if it cannot be captured: `problems` says why."""
    runs = recording.tape.runs
    if isinstance(outcome, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)):
        recording.problems.append(
            f"it returns a {type(outcome).__name__}, which runs later: capture a function that does its work when called"
        )
    elif len(runs) != 1:
        recording.problems.append(_not_one(runs))
    if recording.problems:
        return None
    recorded = _CallOutcome(recording, runs[0]).recorded(outcome)
    return None if recording.problems else recorded


def _not_one(runs: list[Run]) -> str:
    if not runs:
        return NOTHING_COMPUTED
    return (
        f"it runs {len(runs)} programs: leave out torch_xla.sync(), xm.mark_step() and optimizer_step(barrier=True) inside, "
        "as well as what needs a value at once (print, a shape that depends on data, an operation without a lowering)"
    )


class _CallOutcome:
    """Finds where a program's inputs come from, and which storages took its results."""

    def __init__(self, recording: CallRecording, run: Run) -> None:
        self.recording, self.tape, self.run = recording, recording.tape, run
        self.problems = recording.problems
        self.leaves = recording.leaves()
        self.problems += recording.changed()
        self._before: dict[int, Source] = {}  # by buffer
        self._sources: dict[int, Source] = {}  # by storage
        self._results = {id(buffer): Result(index) for index, buffer in enumerate(run.results)}
        self._sunk: set[int] = set()
        self._new: dict[int, int] = {}
        self._kept: list[Storage] = []
        self._aliases: list[tuple[Source, Source]] = []
        self._fresh: set[int] = set()  # storages of new gradients
        self._uploads: dict[tuple[Any, ...], int] = {}
        # Keeps storages alive, so that their ids stay theirs.
        self._alive = list(self.tape.touched)
        self._name_sources()

    def _name_sources(self) -> None:
        for index, storage in enumerate(self.recording.arguments.storages):
            self._sources.setdefault(id(storage), Argument(index))
        for index, leaf in enumerate(self.leaves):
            of_gradient = self.recording.met[id(leaf)].grad_storage
            if of_gradient is not None:
                self._sources.setdefault(id(of_gradient), Gradient(index))
        for storage in self._alive:
            if not self.tape.born(storage):
                self._sources.setdefault(id(storage), State(storage))
                buffer = self.tape.touched[storage].buffer
                if buffer is not None:
                    source = self._sources[id(storage)]
                    first = self._before.setdefault(id(buffer), source)
                    if first is not source:
                        self._aliases.append((first, source))

    def recorded(self, outcome: Any) -> Recorded:
        """Describe the call. Adds to `problems` what cannot be captured."""
        left = self.recording.left
        described, labels, tree = self._described(outcome, left)
        leaves = [self._gradient(number, leaf) for number, leaf in enumerate(self.leaves)]
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
            origin = self._written(storage)
            if origin is not None:
                writes.append((self._sources[id(storage)], origin))
        new = [self._origin(storage) for storage in self._kept]
        sources = list(map(self._source, self.run.inputs.buffers, self.run.graph.parts.leaves))
        pinned = self._pinned()
        self._look_for_unseen()
        if self.recording.reads is not None:
            self.recording.reads.objects.end()  # they hold what the call made, too
        self._look_at_strays(strays)
        seeds, drawn, steps = self.recording.seeds(self.run)
        return Recorded(
            number=self.recording.number,
            run=self.run,
            sources=[source for source in sources if source is not None],
            aliases=self._aliases,
            pinned=pinned,
            writes=writes,
            leaves=leaves,
            required=self.recording.required(),
            new=[origin for origin in new if origin is not None],
            shardings=[resharding.requested_sharding(storage) for storage in self._kept],
            results=described,
            tree=tree,
            places=[write.place for write in left],
            left=[write.name for write in labels],
            bindings=self._bindings() if self.recording.reads is not None else [],
            stepped=list(self.tape.watch.stepped.values()),
            comparisons=list(dict.fromkeys(self.tape.tracer.comparisons)),
            objects=None if self.recording.reads is None else self.recording.reads.objects,
            passed=self.recording.passed,
            symbols=self.recording.symbols,
            numbers=self.recording.arguments.numbers,
            seeds=seeds,
            drawn=drawn,
            steps=steps,
            hosts=self._hosts(),
            stepped_slots=self.tape.watch.slots,
        )

    def _described(self, outcome: Any, left: list[Write]) -> tuple[list[Any], list[Write], TreeSpec]:
        """Descriptions of what the call returns, and of what it left in Python; of these the writes; how all of them are nested."""
        afters = [RETURNED if write.after is outcome and not isinstance(outcome, torch.Tensor) else write.after for write in left]
        flat, tree = results.flatten((outcome, afters), self._is_old)
        labels: list[Write] = []
        for write, after in zip(left, afters, strict=True):
            labels += [write] * len(results.flatten(after, self._is_old)[0])
        returned = len(flat) - len(labels)
        first: dict[int, int] = {}
        described: list[Any] = []
        for index, item in enumerate(flat):
            if isinstance(item, torch.Tensor) and first.setdefault(id(item), index) != index:
                described.append(Again(first[id(item)]))
            else:
                described.append(self._outcome(item, None if index < returned else labels[index - returned]))
        return described, labels, tree

    def _is_old(self, value: Any) -> bool:
        """Whether an object was there before the call."""
        arguments = self.recording.arguments
        return self.recording.is_old(value) or any(value is each for each in (*arguments.objects, *arguments.containers, *arguments.opened))

    def _outcome(self, item: Any, write: Write | None) -> Any:
        """Where a returned object, or one that the call leaves at a place (`write`), comes from."""
        if isinstance(item, torch.Tensor):
            return self._tensor(item, write)
        if isinstance(item, Number):
            return Computed(item.expression, item.true)
        for index, passed in enumerate(self.recording.arguments.objects):
            if passed is item:
                return ArgumentItself(index)
        for opened, those in ((False, self.recording.arguments.containers), (True, self.recording.arguments.opened)):
            for index, container in enumerate(those):
                if container is item:
                    return ArgumentContainer(index, opened)
        if not isinstance(item, results.PLAIN) and item is not ABSENT and item is not RETURNED and not self.recording.is_old(item):
            kind = type(item).__name__
            if write is None:
                self.problems.append(
                    f"it returns {kind}: return tensors, numbers, texts and arguments, in tuples, lists, dicts and dataclasses"
                )
            else:
                self.problems.append(
                    f"it sets {write.name} to a new {kind}{_at(write)}, which a captured call could not make again: set that outside, or "
                    "keep tensors, numbers and texts there"
                )
        return Constant(item)

    def _tensor(self, item: torch.Tensor, write: Write | None) -> Any:
        xla_tensor = tensor_behind(item)
        if xla_tensor is None:
            if self.recording.is_old(item):
                return Constant(item)
            subject = "it returns" if write is None else f"it sets {write.name} to"
            self.problems.append(f"{subject} a {type(item).__name__} on {item.device}{_at(write)}: keep tensors on the device")
            return Constant(None)
        for index, tensor in enumerate(self.recording.arguments.tensors):
            if tensor is item:
                return Existing(index)
        for index, tensor in enumerate(self.leaves):
            if tensor.grad is item:
                return GradientOf(index)
        if not self.tape.was_made(item) and not self.tape.born(xla_tensor._storage):
            return Existing(None, id(item), item)
        if item.requires_grad and self.recording.reads is not None and not self.recording.reads.graph_is_gone(item):
            self.recording.has_graph = True
        if type(item) not in PLAIN_CLASSES:
            self.problems.append(f"it returns or keeps a {type(item).__name__}, whose class a captured call would not make: take its data")
        if vars(item):
            names = ", ".join(vars(item))
            self.problems.append(
                f"it sets {names} of a tensor that it returns or keeps: return that beside the tensor, or set it behind the call"
            )
        if not self.tape.born(xla_tensor._storage):
            return ViewOf(self._source_of(xla_tensor._storage), xla_tensor._view)
        index = self._new.setdefault(id(xla_tensor._storage), len(self._kept))
        if index == len(self._kept):
            self._kept.append(xla_tensor._storage)
        return ViewOf(NewStorage(index), xla_tensor._view)

    def _source_of(self, storage: Storage) -> Source:
        return self._sources.setdefault(id(storage), State(storage))

    def _gradient(self, number: int, tensor: torch.Tensor) -> GradientLeaf:
        entry = self.recording.met[id(tensor)].grad
        leaf = GradientLeaf(tensor, entry is not None, tensor.grad is not None)
        gradient = None if tensor.grad is None else tensor_behind(tensor.grad)
        if gradient is None or (entry is not None and entry() is tensor.grad):
            return leaf
        if tensor.grad is not None and tensor.grad.requires_grad:
            self.problems.append("it leaves gradients that have a history (create_graph=True): return what you need of them, detached")
        if any(tensor is argument for argument in self.recording.arguments.tensors):
            self.problems.append("it leaves a gradient on an argument: return it, from torch.autograd.grad")
        leaf.same_as = next((index for index in range(number) if self.leaves[index].grad is tensor.grad), None)
        leaf.fresh, leaf.spec, leaf.origin = True, gradient._view, self._origin(gradient._storage)
        leaf.sharding = resharding.requested_sharding(gradient._storage)
        self._fresh.add(id(gradient._storage))
        return leaf

    def _written(self, storage: Storage) -> Origin | Zeros | None:
        """Where the present value of a storage comes from that was there before."""
        zeroed = storage.value.buffer is None and hasattr(storage.value, "zeroed")
        return Zeros() if zeroed else self._origin(storage)

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

    def _source(self, buffer: jax.Array, aval: Aval) -> Source | None:
        source = self._before.get(id(buffer))
        upload = self.tape.uploads.get(id(buffer))
        if source is None and upload is not None:
            number = self._uploads.setdefault(upload.key, -1) + 1
            self._uploads[upload.key] = number
            return State(self.recording.constants.storage(upload, number, self.tape.recorder, aval))
        if source is None:
            self.problems.append(
                f"it takes {buffer.dtype}{list(buffer.shape)}, which was made of host data inside: make constants before the call"
            )
        return source

    def _look_at_strays(self, strays: list[weakref.ref[Storage]]) -> None:
        """Report new tensors that someone still holds, but for those that the graph of a result holds."""
        self._alive.clear()
        if self.recording.has_graph:
            return
        if strays:
            gc.collect()  # cycles may keep them
            if self.recording.reads is not None:
                self.recording.reads.forget_ended()
                gc.collect()
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
                bindings.append((tensor, bound(tensor), self.recording.met[id(tensor)].wanted))
        return bindings

    def _pinned(self) -> list[tuple[int, Storage]]:
        """The arguments that the call finds in another way, too, such as on an object."""
        arguments, reads = self.recording.arguments, self.recording.reads
        if reads is None:
            return []
        own = set(map(id, arguments.tensors))
        met = [(met.reference(), met.storage) for met in self.recording.met.values()]
        elsewhere = {id(storage) for tensor, storage in met if tensor is not None and id(tensor) not in own}
        return [
            (index, storage)
            for index, (tensor, storage) in enumerate(zip(arguments.tensors, arguments.storages, strict=True))
            if id(storage) in elsewhere or reads.objects.is_known(tensor)
        ]

    def _hosts(self) -> list[tuple[torch.Tensor, int]]:
        hosts = []
        for reference, version, stepping in self.tape.hosts.values():
            tensor = reference()
            if tensor is not None:
                hosts.append((tensor, version))
            elif stepping:
                self.problems.append("an optimizer makes CPU tensors inside of step: construct it with capturable=True if it has that")
        return hosts


def _at(write: Write | None) -> str:
    return "" if write is None or write.line is None else f" (at {write.line})"
