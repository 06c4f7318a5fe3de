"""Record a function apart from its device's pending graph, over stand-ins for its arguments: the body of a loop, or a branch.

Recording runs nothing. Tensors, numbers and random states that the function uses from outside become operands of the operation that has the
body, so that a body is a pure function of arrays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from xla_core.base.errors import GraphBreakError, UnsupportedOperationError
from xla_core.base.private_torch import DispatchMode, reparametrized, saved_tensors_are_hooked, tree_leaves, tree_map
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarInput, ScalarKind
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.pending_graph import NOBODY, PendingGraph, Recorder, Value, lose
from xla_core.engine.graph.selection import ancestors, extract, renamed_lines
from xla_core.engine.runtime.sync import before_step
from xla_core.engine.tensor.plain import holder, holder_of, mixed
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tensor.tensor import XLATensor, wrap
from xla_core.engine.tensor.values import value_of
from xla_core.engine.tracing.apart import recording_apart
from xla_core.engine.tracing.origins import Argument


@dataclass(frozen=True, slots=True)
class HostNumber:
    """A Python number that a body uses, and how it enters a program."""

    kind: ScalarInput
    number: int | float


class Feed(Enum):
    """The lists that a body's leaves come from."""

    GIVEN = "given"
    HELD = "held"  # values and numbers from outside
    SEED = "seed"


@dataclass(frozen=True, slots=True)
class Body:
    """A recorded function. feeds: for each leaf of the graph, in the order of slots, its list and its index there.

    held: values and numbers that it uses from outside. seeds: its distinct random states; operations with the same state share one.
    """

    graph: Graph
    feeds: tuple[tuple[Feed, int], ...]
    held: tuple[Value | HostNumber, ...]
    seeds: tuple[int, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for bodies that are the same function of their arguments, captured values and seeds."""
        return (self.graph.key, self.feeds)


class BodyGraph(PendingGraph):
    """The pending graph of a body. Values from outside enter it as leaves, and are restored when the recording ends."""

    __slots__ = ("captured",)

    is_body = True

    def __init__(self) -> None:
        super().__init__()
        self.captured: dict[int, tuple[Value, PendingGraph | None, int]] = {}  # by slot: the value, and where it was

    def adopt(self, value: Value) -> int:
        """The slot of `value`, which enters as a leaf if it comes from outside."""
        if value.pending_graph is not self:
            slot = len(self.entries)
            self.captured[slot] = value, value.pending_graph, value.slot
            self.entries.append(value.aval)
            self.refs.append(NOBODY)
            self.input_data[slot] = value
            value.pending_graph, value.slot = self, slot
        return value.slot

    def is_outside(self, value: Value) -> bool:
        """Whether a value was not made by this body."""
        return value.pending_graph is not self or value.slot in self.captured


class Recording:
    """A body while it is recorded.

    what: the function that needs the body, for errors. tensors: the tensors from outside that it used and that need a gradient, in order;
    leaves: their stand-ins inside, which have neither their history nor their hooks.
    """

    def __init__(self, recorder: Recorder, what: str, graph: BodyGraph, entered: ExitStack) -> None:
        self.recorder = recorder
        self.what = what
        self.entered = entered  # ends with the recording
        self.graph = graph
        self.tensors: list[torch.Tensor] = []
        self.leaves: list[torch.Tensor] = []
        self.given: list[int] = []  # slots of the stand-ins
        self.stand_ins: dict[int, Storage] = {}
        self._inside: dict[int, torch.Tensor] = {}
        self._made: dict[int, torch.Tensor] = {}  # tensors that its functions returned, by id: kept, so that no other gets the id

    def stand_in(self, aval: Aval, requires_grad: bool = False) -> XLATensor:
        """A tensor that stands for the next argument."""
        graph, slot = self.graph, len(self.graph.entries)
        graph.entries.append(aval)
        graph.refs.append(NOBODY)
        graph.input_data[slot] = Argument(len(self.given))
        self.given.append(slot)
        tensor = wrap(graph.define(self.recorder, slot, aval))
        self.stand_ins[id(tensor._storage)] = tensor._storage
        self._made[id(tensor)] = tensor
        return tensor.requires_grad_(requires_grad)  # type: ignore[return-value]

    def is_foreign(self, storage: Storage) -> bool:
        """Whether the body may not write to a storage. It may write to one without a value: torch.empty made it, here or outside."""
        if id(storage) in self.stand_ins:
            return True
        value = storage.value
        return (value.pending_graph is not None or value.buffer is not None) and self.graph.is_outside(value)

    def inside(self, tensor: Any) -> Any:
        """The leaf that stands for a tensor from outside that needs a gradient; any other object unchanged."""
        if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad or not self.is_outside(tensor):
            return tensor
        if id(tensor) not in self._inside:
            leaf = self._inside[id(tensor)] = tensor.detach().requires_grad_()
            self.note_made(leaf)
            self.tensors.append(tensor)
            self.leaves.append(leaf)
        return self._inside[id(tensor)]

    def is_outside(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor comes from outside."""
        behind = None if id(tensor) in self._made else holder_of(tensor)
        return behind is not None and self.graph.is_outside(behind._storage.value)

    def note_made(self, tensor: torch.Tensor) -> None:
        """Note a tensor that a function returned inside the body."""
        if id(tensor) not in self._inside:
            self._made[id(tensor)] = tensor

    def slot_of(self, tensor: Any) -> int:
        """The slot of a result's value. Raises TypeError for anything but a tensor, RuntimeError for one on another device."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{self.what} gives tensors (or None), got a {type(tensor).__name__}: make it a tensor")
        return self.graph.adopt(value_of(holder(tensor)))

    def body(self, slots: Sequence[int]) -> Body:
        """The body that computes the values at `slots`."""
        return body_of(self.graph, slots)


def body_of(graph: PendingGraph, slots: Sequence[int]) -> Body:
    """The part of a body's graph that computes the values at `slots`."""
    entries, renamed, input_data = extract(graph, ancestors(graph, slots))
    feeds: list[tuple[Feed, int]] = []
    captured: list[Value | HostNumber] = []
    seeds: dict[int, int] = {}
    for slot in sorted(input_data):
        source, entry = input_data[slot], entries[slot]
        if isinstance(source, Argument):
            feeds.append((Feed.GIVEN, source.index))
        elif isinstance(entry, ScalarInput) and entry.kind is ScalarKind.SEED:
            feeds.append((Feed.SEED, seeds.setdefault(source, len(seeds))))
        else:
            feeds.append((Feed.HELD, len(captured)))
            captured.append(HostNumber(entry, source) if isinstance(entry, ScalarInput) else source)
    cut = Graph(tuple(entries), tuple(renamed[slot] for slot in slots), lines=renamed_lines(graph, renamed))
    return Body(cut, tuple(feeds), tuple(captured), tuple(seeds))


class _Gradients(TorchFunctionMode):
    """Passes leaves to functions for tensors from outside that need a gradient, and notes the tensors that they return."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self._recording
        if _innermost.recordings[-1] is not recording:
            return func(*args, **kwargs)
        if any(recording.inside(leaf) is not leaf for leaf in tree_leaves((args, kwargs))):
            args, kwargs = tree_map(recording.inside, (args, kwargs))
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                recording.note_made(leaf)
        return result


class _Writes(DispatchMode):  # type: ignore[misc]
    """Refuses writes to storages that the body did not make. Compares values before and after: not every schema says what it writes to."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self._recording
        if _innermost.recordings[-1] is not recording:
            return func(*args, **kwargs)
        storages = [tensor._storage for leaf in tree_leaves((args, kwargs)) if (tensor := holder_of(leaf)) is not None]
        before = [(storage, storage.value) for storage in storages if recording.is_foreign(storage)]
        result = func(*args, **kwargs)
        changed = [(storage, value) for storage, value in before if storage.value is not value]
        for storage, value in changed:
            storage.value = value
        if changed:
            to_argument = any(id(storage) in recording.stand_ins for storage, _ in changed)
            target = (
                "one of its arguments: write to a clone() and" if to_argument else "a tensor from outside of it: pass it as an argument and"
            )
            raise UnsupportedOperationError(f"{func} in the function of {recording.what} writes to {target} return the new value")
        return result


class _Innermost(threading.local):
    """This thread's recordings, the innermost last."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []


_innermost = _Innermost()


def _refuse_collective(token: Any) -> Any:
    raise UnsupportedOperationError(
        f"a collective cannot run in the function of {_innermost.recordings[-1].what}: run it before or after, on all that it gave"
    )


def _refuse_step(recorder: Recorder) -> None:
    if _innermost.recordings:
        raise GraphBreakError(f"a sync cannot run in the function of {_innermost.recordings[-1].what}: move it before or behind the call")


def _same(tensor: Any) -> Any:
    return tensor


@contextmanager
def recording(recorder: Recorder, what: str) -> Iterator[Recording]:
    """Record what this thread does with tensors of one device as a body. what: the function that needs it, such as `scan`.

    Reading a value raises GraphBreakError, writing to a tensor from outside UnsupportedOperationError.
    """
    no_reads = f"{what} records its function as one compiled body, which may not read a value of a tensor"
    graph, before = BodyGraph(), recorder.pending_graph
    with recording_apart(recorder, graph, f"{no_reads}: compute with tensors, or read the value before", _refuse_collective) as entered:
        body_recording = Recording(recorder, what, graph, entered)
        entered.callback(_restore, body_recording, before)
        # A cast that autocast keeps would be used outside.
        entered.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(False)
        entered.callback(before_step(_refuse_step))
        if saved_tensors_are_hooked():
            # Tensors saved inside are used inside: a checkpoint around the body must not drop and recompute them.
            entered.enter_context(torch.autograd.graph.saved_tensors_hooks(_same, _same))
        _innermost.recordings.append(body_recording)
        entered.callback(_innermost.recordings.pop)
        entered.enter_context(_Gradients(body_recording))
        entered.enter_context(_Writes(body_recording))
        yield body_recording
        if any(leaf.grad is not None for leaf in body_recording.leaves):
            raise UnsupportedOperationError(
                f"backward() in the function of {what} has no effect outside: call it on what {what} gives, or torch.autograd.grad inside"
            )


def inside(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that stands for `tensor` in the body that this thread records; outside of bodies, `tensor`."""
    stand_in: torch.Tensor = _innermost.recordings[-1].inside(tensor) if _innermost.recordings else tensor
    return stand_in


def call_with(module: torch.nn.Module, state: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a module in a function that is being recorded, with `state` in place of its parameters and buffers.

    `state` stays in place until the gradient is recorded too: a checkpoint inside the module calls parts of it again.
    """
    _innermost.recordings[-1].entered.enter_context(reparametrized(module, state, tie_weights=True))
    return module(*args, **kwargs)


def _restore(ended: Recording, before: PendingGraph) -> None:
    """Restore all values from outside; values made inside that are still referenced lose theirs."""
    graph = ended.graph
    live = {slot: value for slot, reference in enumerate(graph.refs) if (value := reference()) is not None}
    for slot, (value, pending_graph, original_slot) in graph.captured.items():
        value.pending_graph, value.slot = pending_graph, original_slot
        live.pop(slot, None)
    reads = {read: (base, spec) for (base, spec), read in graph.reads.items() if base in graph.captured}
    for slot, value in live.items():
        if slot in reads:
            # A view from outside that was read inside keeps its value: it is read anew outside.
            base, spec = reads[slot]
            value.pending_graph = before
            value.slot = before.read(before.adopt(graph.captured[base][0]), spec)
            before.refs[value.slot] = graph.refs[slot]
        else:
            lose(value, GraphBreakError(f"it was made in the function of {ended.what}, which has to return it"))


def check_on_device(what: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise RuntimeError for a tensor that is not on an xla device. what: the function that got it."""
    for tensor in tensors:
        if holder_of(tensor) is None:
            raise mixed(tensor)
