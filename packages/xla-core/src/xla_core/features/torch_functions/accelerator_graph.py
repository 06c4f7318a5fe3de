"""`torch.accelerator.Graph`: what is recorded while it captures becomes a program over the memory of tensors, which `replay` runs again.

As on other accelerators, nothing runs while it captures, tensors that are made meanwhile have no values before the first replay, and a
replay reads and writes the memory that tensors had then: copy new inputs into them first. Python does not run again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from xla_core.base import private_torch
from xla_core.base.errors import CaptureError
from xla_core.base.metrics import Cause
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import ScalarInput, ScalarKind
from xla_core.engine.graph.pending_graph import NO_LIMIT, PendingGraph, Recorder, Value, blank_value, buffer_value, computed_buffer, waits
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.source_location import asking_line
from xla_core.engine.runtime.sync import compute, retire, run_live
from xla_core.engine.tensor.storage import Storage


class _NothingRuns:
    """Refuses programs while a graph captures."""

    def running(self, graph: Any, inputs: Any) -> Any:
        """Raises CaptureError."""
        raise CaptureError(
            "a value was read, or a step ended, while a torch.accelerator.Graph captured: read values behind the capture, and call "
            "torch_xla.sync() before it"
        )

    def ran(self, graph: Any, inputs: Any, program: Any, results: list[Any]) -> None:
        """Nothing ran."""

    def moved(self) -> None:
        """Random numbers are drawn anew by each replay."""

    def let_others_wait(self) -> None:
        """Other threads wait for the lock alone."""

    def number_in(self, tensor: torch.Tensor) -> float | None:
        """The number itself, a constant of the graph."""
        return None


@dataclass(frozen=True, slots=True)
class _Slot:
    """A result of the graph: the value at a slot."""

    number: int
    aval: Aval


@dataclass(frozen=True, slots=True)
class _Blank:
    """Zeros, or any values."""

    aval: Aval


# A storage: what it holds at the replay. A value: one that nobody can change.
_Source: TypeAlias = _Slot | _Blank | Storage | Value


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A device as it was when a capture began. storages: by the identity of the value that each of them held."""

    recorder: Recorder
    storages: dict[int, tuple[Storage, Value]]
    limit: int
    seed: int

    def holder(self, value: Value) -> Storage | None:
        """The storage that held a value; None if the value is younger."""
        held = self.storages.get(id(value))
        return None if held is None else held[0]


@dataclass(frozen=True, slots=True)
class _Captured:
    """What replays need. leaves: by slot. writes: where each storage gets its value from."""

    recorder: Recorder
    pending_graph: PendingGraph
    leaves: dict[int, Storage | Value]
    writes: list[tuple[Storage, _Source]]


class AcceleratorGraph:
    """A graph of operations on the default device of the thread, as `torch.accelerator.Graph` describes it.

    keep_graph: `instantiate` is left to the first replay. pool: memory is XLA's own; kept for other graphs. capture_error_mode: reads and
    syncs are refused in each of them.
    """

    def __init__(self, keep_graph: bool = False, *, pool: tuple[int, int] | None = None, capture_error_mode: str = "default") -> None:
        self.graph_pool, self.capture_error_mode = pool, capture_error_mode
        self._beginning: _Beginning | None = None
        self._captured: _Captured | None = None
        self._debug = False

    def capture_begin(self) -> None:
        """Capture what this thread records from now on. Raises CaptureError if a graph captures on the device already."""
        recorder = current_recorder()
        with recorder.lock:
            if recorder.tape is not None:
                raise CaptureError(f"{recorder.device} is captured already: end that capture first")
            run_live(recorder, recorder.pending_graph, Cause.CLEAR_PENDING, asking_line())
            storages = _storages(recorder)
            compute([storage.value for storage in storages], Cause.CLEAR_PENDING)
            retire(recorder)
            held = {id(value): (storage, value) for storage, value in zip(storages, _apart(storages), strict=True)}
            self._beginning = _Beginning(recorder, held, recorder.limit, recorder.seed)
            recorder.allow(NO_LIMIT)
            recorder.tape = _NothingRuns()

    def capture_end(self) -> None:
        """End the capture: tensors have the values again that they had at its beginning; new ones have none yet."""
        beginning, self._beginning = self._beginning, None
        if beginning is None:
            raise CaptureError("capture_begin was not called")
        recorder = beginning.recorder
        with recorder.lock:
            recorder.tape = None
            captured = recorder.pending_graph
            recorder.pending_graph = PendingGraph()
            recorder.allow(beginning.limit)
            recorder.seed = beginning.seed
            leaves = _leaves(captured, beginning)
            changed = [storage for storage in _storages(recorder) if beginning.holder(storage.value) is not storage]
            writes = [(storage, _source(storage.value, captured, beginning)) for storage in changed]
            for storage in changed:
                storage.value = blank_value(recorder, storage.value.aval)
            for storage, value in beginning.storages.values():
                storage.value = value
            self._captured = _Captured(recorder, captured, leaves, writes)

    def instantiate(self) -> None:
        """Do nothing: the first replay compiles the program. Raises CaptureError without a capture."""
        self._what_was_captured()

    def replay(self) -> None:
        """Run the graph on what its tensors hold now. Raises CaptureError without a capture, and for a tensor of another shape or dtype."""
        captured = self._what_was_captured()
        recorder = captured.recorder
        with recorder.lock:
            current = {storage: storage.value for storage in captured.leaves.values() if isinstance(storage, Storage)}
            current |= {source: source.value for _, source in captured.writes if isinstance(source, Storage)}
            slots = _record_again(captured, recorder.pending_graph, current)
            results: dict[int, Value] = {}  # storages that had one value share one again
            for storage, source in captured.writes:
                match source:
                    case _Slot(number, aval):
                        storage.value = results.get(number) or recorder.pending_graph.define(recorder, slots[number], aval)
                        results[number] = storage.value
                    case _Blank(aval):
                        storage.value = blank_value(recorder, aval)
                    case Storage():
                        storage.value = current[source]
                    case _:
                        storage.value = source
            current.clear()  # the program may take over the memory of what it replaces
            results.clear()
            run_live(recorder, recorder.pending_graph, Cause.CAPTURED, asking_line())

    def reset(self) -> None:
        """Forget what was captured, and the tensors that only the graph keeps."""
        self._captured = None

    def pool(self) -> tuple[int, int]:
        """The pool that was given, or a number for this graph: memory is XLA's own."""
        return self.graph_pool or (0, id(self))

    def enable_debug_mode(self) -> None:
        """Allow `debug_dump`."""
        self._debug = True

    def debug_dump(self, path: str) -> None:
        """Write the captured operations as text. Raises CaptureError without a capture, or if `enable_debug_mode` was not called."""
        if not self._debug:
            raise CaptureError("call enable_debug_mode() first")
        entries = self._what_was_captured().pending_graph.entries
        lines = [f"%{slot} = {_text(entry)}" for slot, entry in enumerate(entries) if entry is not None]
        Path(path).write_text("\n".join([*lines, ""]), encoding="utf-8")

    def _what_was_captured(self) -> _Captured:
        if self._captured is None:
            raise CaptureError("nothing was captured: use the graph as a context manager, or call capture_begin and capture_end, first")
        return self._captured

    def __enter__(self) -> None:
        self.capture_begin()

    def __exit__(self, *error: object) -> None:
        self.capture_end()


def _storages(recorder: Recorder) -> list[Storage]:
    """All storages of a device whose data was not lost."""
    storages = [thing for thing in gc.get_objects() if type(thing) is Storage and thing.value.recorder is recorder]
    return [storage for storage in storages if storage.value.buffer is not None or waits(storage.value)]


def _apart(storages: Iterable[Storage]) -> list[Value]:
    """The values of storages, a value of its own for each: a leaf of the graph tells which storage is read."""
    taken: set[int] = set()
    values = []
    for storage in storages:
        value = storage.value
        if id(value) in taken:
            value = storage.value = buffer_value(value.recorder, value.aval, computed_buffer(value), shared=True)
        taken.add(id(value))
        values.append(value)
    return values


def _source(value: Value, captured: PendingGraph, beginning: _Beginning) -> _Source:
    """Where a storage gets its value from in a replay."""
    storage = beginning.holder(value)
    if storage is not None:
        return storage
    if value.buffer is not None:
        return value
    return _Slot(value.slot, value.aval) if value.pending_graph is captured else _Blank(value.aval)


def _leaves(captured: PendingGraph, beginning: _Beginning) -> dict[int, Storage | Value]:
    """Where the graph gets the data of its leaves from in a replay, by slot."""
    leaves: dict[int, Storage | Value] = {
        slot: buffer_value(beginning.recorder, entry, captured.input_data[slot], shared=True)
        for slot, entry in enumerate(captured.entries)
        if isinstance(entry, Aval)
    }
    return leaves | {value.slot: storage for storage, value in beginning.storages.values() if value.pending_graph is captured}


def _record_again(captured: _Captured, pending_graph: PendingGraph, current: dict[Storage, Value]) -> list[int]:
    """Record the operations of a graph over the current values of storages. Returns the new slot of each of its slots."""
    slots: list[int] = []
    for slot, entry in enumerate(captured.pending_graph.entries):
        if entry is None:  # one of several results, which follow their operation
            slots.append(slots[-1] + 1)
        elif isinstance(entry, Aval):
            source = captured.leaves[slot]
            value = current[source] if isinstance(source, Storage) else source
            if value.aval is not entry:
                raise CaptureError(f"the graph reads {entry}, and the tensor is {value.aval} now: capture it again")
            slots.append(pending_graph.adopt(value))
        elif isinstance(entry, ScalarInput):
            number = captured.recorder.draw() if entry.kind is ScalarKind.SEED else captured.pending_graph.input_data[slot]
            slots.append(pending_graph.add_scalar(entry, number))
        else:
            signature, *operands = entry
            first = pending_graph.append(signature, [slots[operand] for operand in operands])
            slots.append(first if len(signature.outs) == 1 else first - 1)
    return slots


def _text(entry: Any) -> str:
    if isinstance(entry, Aval):
        return f"memory {entry}"
    if isinstance(entry, ScalarInput):
        return f"number {entry.kind.value}"
    signature, *operands = entry
    return f"{signature.text()} of {', '.join(f'%{operand}' for operand in operands)}"


def register() -> None:
    """Let `torch.accelerator.Graph` make these, where torch has it and xla is the accelerator."""
    if not hasattr(torch.accelerator, "Graph"):
        return
    by_device = {(torch.accelerator, "Graph"): lambda own: private_torch.class_by_device(own, AcceleratorGraph, by_default=True)}
    private_torch.replace_in_torch(by_device)
