"""Pending work of a device: values, the pending graph that they stand on, and the recorder, which has one pending graph at a time.

Entries (entries.py) stand on the pending graph in recording order. It has only weak references to the values it defines: a value that is
dead at a sync is no result.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from typing import Any, Protocol

import jax
import torch

from xla_core.base.errors import DonatedError, ExecutionError, XlaError
from xla_core.engine.graph import rng
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import INT_FIXED, Entry, ScalarInput
from xla_core.engine.graph.loop import Loop
from xla_core.engine.graph.signature import Signature, blank

_ref = weakref.ref  # a global: recording looks it up for each value


class Value:
    """One immutable value: pending at a slot of a pending graph, or a device buffer, or both (a buffer used by that pending graph).

    shared: somebody outside holds the buffer, so that it is never donated. lost: the error that left it without either, else not set.
    zeroed: the storage and the step in which zeros were written to it, on a blank that stands for such zeros; else not set.
    """

    # No __init__: recording makes one for each operation and sets the fields itself. A call costs as much as two fields
    # (engine/tensor/record.py has the figures).
    __slots__ = ("__weakref__", "aval", "buffer", "lost", "recorder", "shared", "slot", "pending_graph", "zeroed")

    aval: Aval
    recorder: Recorder
    pending_graph: PendingGraph | None
    slot: int
    buffer: jax.Array | None
    shared: bool
    lost: XlaError
    zeroed: tuple[weakref.ref[Any], int]


def lose(value: Value, reason: XlaError) -> None:
    """Give up a pending value: whoever uses it gets `reason`."""
    value.pending_graph = None
    value.slot = -1
    value.lost = reason


def no_value_error(value: Value) -> XlaError:
    """The error for using a value that has neither a buffer nor a slot on the pending graph."""
    if isinstance(value.recorder.pending_graph, ForkedPendingGraph):
        return forked_error()
    reason: XlaError | None = getattr(value, "lost", None)
    if isinstance(reason, DonatedError):
        return DonatedError(str(reason))
    text = f"{value.aval} on {value.recorder.device} has no value"
    if reason is None:
        return ExecutionError(f"{text}: the execution that should have computed it failed")
    return type(reason)(f"{text}: {reason}")


def waits(value: Value) -> bool:
    """Whether a value is still to be computed: pending, or blank. One that was lost is not."""
    return value.buffer is None and (value.pending_graph is not None or value.slot == BLANK)


def computed_buffer(value: Value) -> jax.Array:
    """The buffer of a computed value. Raises the error of the execution that should have made it."""
    if value.buffer is None:
        raise no_value_error(value)
    return value.buffer


# Counting is one call in C, which threads may make at the same time without a lock.
buffers_made = itertools.count()


def counted(counter: itertools.count[int]) -> int:
    """The number of calls of `next` on a counter that started at 0, without calling it."""
    return int(repr(counter)[6:-1])


def buffer_value(recorder: Recorder, aval: Aval, buffer: jax.Array, shared: bool = False) -> Value:
    """A value that is already on the device."""
    value = Value()
    value.aval = aval
    value.recorder = recorder
    value.pending_graph = None
    value.slot = -1
    value.buffer = buffer
    value.shared = shared
    next(buffers_made)
    return value


BLANK = -2  # slot of a value that has no values yet, or zeros: recorded when somebody uses it


def blank_value(recorder: Recorder, aval: Aval) -> Value:
    """A value with any content: nothing is recorded unless it is used before it is overwritten."""
    value = Value()
    value.aval = aval
    value.recorder = recorder
    value.pending_graph = None
    value.slot = BLANK
    value.buffer = None
    value.shared = False
    return value


def _nobody() -> weakref.ref[Value]:
    return weakref.ref(Value())


# A dead reference: code that looks at a slot need not test for None first.
NOBODY = _nobody()


class KeptRef(weakref.ref[Value]):
    """A reference to the value of a leaf whose buffer somebody else holds, too: dead or alive, the leaf is never donated."""

    __slots__ = ()


NO_LIMIT = sys.maxsize


class PendingGraph:
    """Entries by slot, weak references to the values defined there, and the data of leaves and scalar inputs.

    limit: with more entries than this, recording runs some of them (engine/runtime/pending_limit.py).
    uploaded: bytes since it began, or since a part of it ran (engine/runtime/uploads.py).
    """

    __slots__ = ("entries", "input_data", "filled", "kept", "limit", "lines", "partly_run", "reads", "refs", "uploaded")

    is_body = False  # True: the body of an operation that is recorded elsewhere

    def __init__(self, limit: int = NO_LIMIT) -> None:
        self.limit = limit
        self.entries: list[Entry] = []
        self.refs: list[weakref.ref[Value]] = []
        self.input_data: dict[int, Any] = {}
        self.reads: dict[tuple[int, Any], int] = {}
        self.lines: dict[int, str] = {}
        self.filled: list[tuple[weakref.ref[Any], int, Any]] = []  # storages made by filling: see engine/graph/state.py
        self.partly_run = False  # reads have left operations that the step may not need
        self.kept = 0  # entries left by the last compaction
        self.uploaded = 0

    def adopt(self, value: Value) -> int:
        """The slot of `value` on this pending graph; a value that was computed before enters as a leaf."""
        if value.pending_graph is self:
            return value.slot
        buffer = value.buffer
        if buffer is None:
            if value.slot == BLANK:
                return self._fill(value)
            raise no_value_error(value)
        # A leaf of an earlier pending graph still refers to that graph, and enters this one anew.
        entries = self.entries
        slot = len(entries)
        entries.append(value.aval)
        self.refs.append(KeptRef(value) if value.shared else _ref(value))
        self.input_data[slot] = buffer
        value.pending_graph = self
        value.slot = slot
        return slot

    def _fill(self, value: Value) -> int:
        slot = self.append(blank(value.aval), [])
        zeroed = getattr(value, "zeroed", None)
        if zeroed is not None and zeroed[1] != value.recorder.steps:
            # Zeros of an earlier step are on the device, as any state: if they are written to, a leaf (engine/graph/state.py).
            self.filled.append((zeroed[0], slot, 0))
        self.refs[slot] = weakref.ref(value)
        value.slot = slot
        value.pending_graph = self
        return slot

    def mend(self) -> None:
        """Drop the half-made entries that an interrupted recording (Ctrl-C, no memory, too deep a recursion) left at the end."""
        while self.entries and not self._ends_whole():
            del self.entries[-1]
            del self.refs[len(self.entries) :]
        del self.refs[len(self.entries) :]

    def _ends_whole(self) -> bool:
        entries = self.entries
        last = len(entries) - 1
        if len(self.refs) <= last:
            return False
        if entries[last] is not None and type(entries[last]) is not tuple:
            return last in self.input_data
        first = last
        while type(operation := entries[first]) is not tuple:
            first -= 1
        count = len(operation[0].outs)
        return last - first == (0 if count == 1 else count)

    def add_scalar(self, kind: ScalarInput, number: int | float) -> int:
        """The slot of a new host number."""
        slot = len(self.entries)
        self.entries.append(kind)
        self.refs.append(NOBODY)
        self.input_data[slot] = number
        return slot

    def host_number(self, tensor: Any) -> Any:
        """A stand-in for the number in a 0-d CPU tensor whose value is not known while recording; None if it is known."""
        return None

    def append(self, signature: Signature, slots: list[int]) -> int:
        """Record an operation whose results nobody holds yet; returns the slot of the first result."""
        entries = self.entries
        slot = len(entries)
        # Before the references: an entry without them tells `mend` that it is half made.
        entries.append((signature, *slots))
        self.refs.append(NOBODY)
        count = len(signature.outs)
        if count == 1:
            return slot
        entries.extend([None] * count)
        self.refs.extend([NOBODY] * count)
        return slot + 1

    def read(self, slot: int, spec: Any) -> int:
        """The slot of view `spec` of the value at `slot`; recorded once per pending graph."""
        if not spec.steps:
            return slot
        key = (slot, spec)
        view_slot = self.reads.get(key)
        if view_slot is None:
            # The offsets of slices are numbers of the program, not of the operation: one signature reads all of them.
            view_slot = self.reads[key] = self.append(spec.read, [slot, *[self.add_scalar(INT_FIXED, offset) for offset in spec.offsets]])
        return view_slot

    def write(self, slot: int, spec: Any, part: int) -> int:
        """The slot of the value at `slot` after the value at `part` was written through view `spec`."""
        return self.append(spec.write, [slot, part, *[self.add_scalar(INT_FIXED, offset) for offset in spec.write_offsets]])

    def define(self, recorder: Recorder, slot: int, aval: Aval) -> Value:
        """The value at `slot`, to be held by a storage."""
        value = Value()
        value.aval = aval
        value.recorder = recorder
        value.pending_graph = self
        value.slot = slot
        value.buffer = None
        value.shared = False
        self.refs[slot] = weakref.ref(value)
        return value


def forked_error() -> ExecutionError:
    """The error for a process that was forked after its parent had used devices."""
    return ExecutionError(
        "this process was forked from one that uses xla devices, which only that one can use: start processes by spawn or forkserver "
        "(multiprocessing.set_start_method('spawn'), xmp.spawn), before devices are used; workers of a DataLoader must work on CPU tensors"
    )


class ForkedPendingGraph(PendingGraph):
    """Stands for the pending graphs of the parent in a forked process: nothing can be recorded."""

    __slots__ = ()

    def adopt(self, value: Value) -> int:
        """Raises ExecutionError, as all that records."""
        raise forked_error()

    def add_scalar(self, kind: ScalarInput, number: int | float) -> int:
        """Raises ExecutionError."""
        raise forked_error()

    def append(self, signature: Signature, slots: list[int]) -> int:
        """Raises ExecutionError."""
        raise forked_error()


class RunObserver(Protocol):
    """Watches the programs that a device runs while a step is captured. engine/runtime/executor.py calls it, and has its types."""

    def running(self, graph: Any, inputs: Any) -> Any:
        """The inputs with which `graph` is to run instead."""

    def ran(self, graph: Any, inputs: Any, program: Any, results: list[jax.Array]) -> None:
        """Note a program that was launched."""

    def moved(self) -> None:
        """Note that the random state was set, or that a step has ended."""

    def let_others_wait(self) -> None:
        """Called in another thread that is about to use the device."""

    def number_in(self, tensor: torch.Tensor) -> float | None:
        """A number to record instead of the one in a 0-d CPU tensor; None for that one."""


class Lock(Protocol):
    """A lock that a thread may take again."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it. Returns whether it was taken: False only if not `blocking` and another thread has it."""

    def release(self) -> None:
        """Give it back."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...


class Recorder:
    """One device as recording sees it: its lock, its pending graph and its random state.

    limit: of its next pending graphs. loop: the loop without syncs that it is recording, once one was found.
    seed: the random state, which advances on the host (rng.py), so that reading it runs nothing. tape: watches the programs that run while
    a step is captured. steps: syncs so far. uploaded: bytes for programs that may not have run yet (engine/runtime/uploads.py).
    """

    __slots__ = ("device", "eager", "index", "limit", "lock", "loop", "pending_graph", "seed", "steps", "tape", "uploaded")

    def __init__(self, index: int) -> None:
        self.index = index
        self.device = torch.device("xla", index)
        self.lock: Lock = threading.RLock()
        self.pending_graph = PendingGraph()
        self.seed = rng.initial_seed()
        self.eager = False  # each operation runs as soon as it is recorded
        self.limit = NO_LIMIT
        self.loop: Loop | None = None
        self.tape: RunObserver | None = None
        self.steps = 0
        self.uploaded = 0

    def set_seed(self, seed: int) -> None:
        """Set the random state. Raises ValueError for anything but a non-negative 64-bit integer."""
        self.seed = rng.checked(seed)
        if self.tape is not None:
            self.tape.moved()

    def draw(self) -> int:
        """Draw the seed of one random operation; the state moves on."""
        seed = self.seed
        self.seed = rng.moved_on(seed)
        return seed

    def allow(self, limit: int) -> None:
        """Set the limit of entries of its pending graphs, from the present one on."""
        self.limit = self.pending_graph.limit = limit

    def end_step(self) -> None:
        """Count a step, and move the random state past it."""
        self.steps += 1
        self.seed = rng.past_step(self.seed)
        if self.tape is not None:
            self.tape.moved()
