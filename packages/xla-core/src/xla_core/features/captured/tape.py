"""Notes what a recorded call touches: storages with their values, tensors, modules, optimizers, reads, and the program that ran.

Other threads may use the device meanwhile; their programs are not part of the call. If they record on the same pending graph, run a part of
it or move the random state, the call is `disturbed`: its results are right, but nobody knows which operations were its own.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import torch
from torch.optim.optimizer import Optimizer

from xla_core.base import metrics
from xla_core.base.metrics import Direction, TransferEvent
from xla_core.engine.compile.cache import Program
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.tensor import dispatch
from xla_core.engine.tensor.encode import recorder_among
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.storage import Storage
from xla_core.engine.tracing.numbers import Expression, Number, Tracer
from xla_core.features.captured.constants import MOST_BYTES, Upload
from xla_core.features.captured.optimizers import Following, Watch


@dataclass(slots=True)
class Touched:
    """A storage as the call found it. buffer: None if it had none, or was made during the call (`born`)."""

    buffer: jax.Array | None
    born: bool


@dataclass(slots=True)
class Run:
    """A program that ran. inputs: with the true numbers; expressions: formulas of floats, by column (whether fixed) and index."""

    graph: Graph
    inputs: Inputs
    program: Program
    expressions: dict[tuple[bool, int], Expression]
    results: list[jax.Array] = field(default_factory=list)


PATIENCE_S = 1.0
"""How many seconds other threads wait at their first operation while a recorded call records nothing: it may be waiting for them."""
_LONGEST_CALL = 60
"""How many such waits they make at most while the call works, such as by compiling."""


def _nothing(tensor: torch.Tensor) -> None:
    """Nobody asks for tensors."""


class _Entries(list[Any]):
    """The entries of a pending graph while a call is recorded there."""

    def __init__(self, entries: Iterable[Any], note: Callable[[], None]) -> None:
        super().__init__(entries)
        self._note = note

    def append(self, entry: Any) -> None:
        """Append an entry, from any thread."""
        self._note()
        super().append(entry)


class Tape:
    """Observes what one thread records on a device from `open` to `close`, and until `leave` whether others disturb it.

    following: how to follow optimizers (`optimizers` from the begin); None to compare the call with a program whose formulas are known.
    patient: let other threads wait for the end of the call, while it makes progress. on_tensor: called with each tensor
    before an operation takes it. busy: whether the device is computing.
    """

    def __init__(
        self,
        recorder: Recorder,
        following: Following | None,
        optimizers: Iterable[Optimizer],
        patient: bool = True,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._optimizers = optimizers
        self.recorder = recorder
        self.following = following
        self.tracer = Tracer(exact=following is None)
        self.on_tensor: Callable[[torch.Tensor], None] = _nothing
        self.host_numbers: dict[int, Number] = {}  # in CPU tensors, by id
        self.uploads: dict[int, Upload] = {}  # by the ids of their buffers
        self.waited = False  # whether the device still computed the last call when this one had recorded its program
        self._busy = busy
        self.touched: weakref.WeakKeyDictionary[Storage, Touched] = weakref.WeakKeyDictionary()
        self.seen: dict[int, weakref.ref[torch.Tensor]] = {}  # tensors that operations took
        self.made: dict[int, weakref.ref[torch.Tensor]] = {}  # tensors that operations returned
        self.hosts: dict[int, tuple[weakref.ref[torch.Tensor], int, bool]] = {}  # CPU tensors that operations took
        self.runs: list[Run] = []
        self.problems: list[str] = []
        self.in_optimizer = False  # whether the first problem was met inside an optimizer's step
        self.disturbed = False
        self.waited_in_vain = False  # whether another thread has
        self._over = threading.Event()
        if not patient:
            self._over.set()
        self._thread = threading.get_ident()
        self._ends: list[Callable[[], None]] = []

    def open(self, begin: Callable[[], None]) -> bool:
        """Begin to observe; False if another thread's call is being recorded on the device. begin: runs a sync."""
        with self.recorder.lock:
            if self.recorder.tape is not None:
                self.disturbed = True
                return False
            self.recorder.tape = self
        if self.recorder.pending_graph.entries:
            # Other threads have recorded since the sync before the call. Now they wait.
            seed = self.recorder.seed
            begin()
            self.recorder.seed = seed
        with self.recorder.lock:
            self.runs.clear()  # of the sync, and of other threads: the call has not begun
            self.disturbed = bool(self.recorder.pending_graph.entries)
            self._watch_entries()
        self.watch = Watch(self.tracer, self.following, self.mine, lambda: len(self.recorder.pending_graph.entries), self._optimizers)
        self._ends = [
            self.watch.close,
            metrics.subscribe(self._transferred, TransferEvent),
        ]
        _set_tape(self)
        _observe(1)
        return True

    def close(self) -> None:
        """Stop observing."""
        if current_tape() is self:
            _set_tape(None)
            _observe(-1)
        while self._ends:
            self._ends.pop()()

    def leave(self) -> None:
        """Let other threads use the device freely, and forget tensors: some functions of torch refuse those that have weak references."""
        self.on_tensor = _nothing
        for noted in (self.seen, self.made, self.hosts, self.uploads):
            noted.clear()
        if self.recorder.tape is self:
            self.recorder.tape = None
        self._over.set()

    def _watch_entries(self) -> None:
        pending_graph = self.recorder.pending_graph
        pending_graph.entries = _Entries(pending_graph.entries, self.moved)

    def moved(self) -> None:
        """Note that something was recorded, the random state was set, or a step has ended."""
        if not self.mine():
            self.disturbed = True

    def let_others_wait(self) -> None:
        """Called by other threads: wait for the end of the call, while it makes progress."""
        if self.mine():
            return
        recorded = -1
        for _ in range(_LONGEST_CALL):
            if self._over.wait(PATIENCE_S):
                return
            before, recorded = recorded, len(self.recorder.pending_graph.entries)
            if before == recorded and not self._is_running():
                break
        self.waited_in_vain = True
        self._over.set()

    def _is_running(self) -> bool:
        """Whether the call compiles or launches a program, and so holds the device's lock."""
        free = self.recorder.lock.acquire(blocking=False)
        if free:
            self.recorder.lock.release()
        return not free

    def mine(self) -> bool:
        """Whether the tape observes this thread."""
        return threading.get_ident() == self._thread

    def take(self, tensor: torch.Tensor) -> None:
        """Note a tensor that the call takes."""
        xla_tensor = tensor_behind(tensor)
        if xla_tensor is None:
            if tensor.device.type == "cpu":
                self.hosts[id(tensor)] = (weakref.ref(tensor), tensor._version, self.watch.depth > 0)
            return
        storage = xla_tensor._storage
        if storage.value.recorder is not self.recorder:
            self.problem(f"it computes on {storage.value.recorder.device} as well as on {self.recorder.device}")
        else:
            self.touch(storage)
        if id(tensor) not in self.seen:
            self.seen[id(tensor)] = weakref.ref(tensor)
            self.on_tensor(tensor)

    def touch(self, storage: Storage) -> None:
        """Note a storage with its present buffer."""
        if storage not in self.touched:
            self.touched[storage] = Touched(storage.value.buffer, False)

    def born(self, storage: Storage) -> bool:
        """Whether the call made a storage."""
        touched = self.touched.get(storage)
        return touched is not None and touched.born

    def give(self, tensor: torch.Tensor) -> None:
        """Note a tensor that an operation returned."""
        xla_tensor = tensor_behind(tensor)
        if xla_tensor is None:
            return
        if xla_tensor._storage not in self.touched:
            self.touched[xla_tensor._storage] = Touched(None, True)
        if id(tensor) not in self.seen or self.seen[id(tensor)]() is not tensor:
            self.made[id(tensor)] = weakref.ref(tensor)

    def has_written(self) -> bool:
        """Whether the call has stepped an optimizer, or given a storage that was there before another value."""
        changed = any(storage.value.buffer is not touched.buffer for storage, touched in self.touched.items() if not touched.born)
        return changed or bool(self.watch.stepped)

    def taken(self) -> list[torch.Tensor]:
        """The living tensors that operations took, in order."""
        tensors = [reference() for reference in self.seen.values()]
        return [tensor for tensor in tensors if tensor is not None]

    def was_made(self, tensor: torch.Tensor) -> bool:
        """Whether an operation of the call made this tensor object."""
        reference = self.made.get(id(tensor))
        return reference is not None and reference() is tensor

    def number_in(self, tensor: torch.Tensor) -> float | None:
        """The traced number in a CPU tensor; None if it is not traced, or the call has written another one."""
        number = self.host_numbers.get(id(tensor)) if self.mine() else None
        return None if number is None or tensor.item() != number.true else float.__add__(number, 0.0)

    def problem(self, text: str) -> None:
        """Note why this call cannot be captured, with the user's line."""
        line = user_line()
        self.problems.append(f"{text} (at {line})" if line else text)

    def running(self, graph: Graph, inputs: Inputs) -> Inputs:
        """Replace followed numbers among a program's inputs by their true values, and note uploaded inputs, before it runs."""
        self.waited = self._busy()
        known = {id(touched.buffer) for touched in self.touched.values()}
        for buffer in inputs.buffers:
            if id(buffer) not in known and buffer.nbytes <= MOST_BYTES:
                self.uploads[id(buffer)] = Upload(buffer)
        expressions: dict[tuple[bool, int], Expression] = {}
        columns = {fixed: list(inputs.fixed_floats if fixed else inputs.floats) for fixed in (False, True)}
        for fixed, column in columns.items():
            for index, value in enumerate(column):
                number = self.tracer.found(value)
                if number is not None:
                    column[index] = number.true
                    expressions[fixed, index] = number.expression
        self._expressions = expressions
        return replace(inputs, floats=columns[False], fixed_floats=columns[True])

    def ran(self, graph: Graph, inputs: Inputs, program: Program, results: list[jax.Array]) -> None:
        """Note a launched program. Another thread's program may have computed a part of the call."""
        self.moved()
        self.runs.append(Run(graph, inputs, program, self._expressions, results))
        self._watch_entries()

    def _transferred(self, event: TransferEvent) -> None:
        if self.mine() and event.device == str(self.recorder.device):
            self.in_optimizer = self.watch.depth > 0 and not self.problems or self.in_optimizer
            where = f" (at {event.line})" if event.line else ""
            if event.direction is Direction.FROM_DEVICE:
                self.problems.append(f"it reads a value{where}: move print, item() and other reads behind the call, on what it returns")
            elif event.nbytes > MOST_BYTES:
                self.problems.append(
                    f"it uploads host data{where}: move that to before the call, keep the tensor or give it as an argument on the device"
                )


def _tensors(items: Iterable[Any]) -> Iterable[torch.Tensor]:
    for item in items:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (tuple, list)):
            yield from _tensors(item)


_open = 0
_lock = threading.Lock()


def _observe(change: int) -> None:
    """Add `change` to the number of open tapes. Handlers are wrapped while there is one."""
    global _open
    with _lock:
        before, _open = _open, _open + change
        if bool(before) is not bool(_open):
            dispatch.wrap_handlers(_observed if _open else None)


def _observed(handler: Handler) -> Handler:
    recording = dispatch.with_lines(handler)  # for messages about differences

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tape = current_tape()
        if tape is None:
            recorder = recorder_among((args, tuple(kwargs.values())))
            if recorder is not None and recorder.tape is not None:
                recorder.tape.let_others_wait()
            return handler(args, kwargs)
        for tensor in _tensors((*args, *kwargs.values())):
            tape.take(tensor)
        result = recording(args, kwargs)
        for tensor in _tensors((result,)):
            tape.give(tensor)
        return result

    return run


class _Own(threading.local):
    """This thread's tape."""

    tape: Tape | None = None


_own = _Own()


def current_tape() -> Tape | None:
    """The tape that observes this thread."""
    return _own.tape


def _set_tape(tape: Tape | None) -> None:
    _own.tape = tape
