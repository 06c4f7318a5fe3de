"""A program cut out of a pending graph: entries in a canonical order, what comes out, what goes in.

A step takes the whole pending graph as it is, which is why a repeated step needs no walk over its operations. A value read takes the
ancestors of what is asked for, renumbered, so that equal computations have equal keys whatever else is pending.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from xla_core.base.errors import InternalError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import Entry, ScalarInput, ScalarKind
from xla_core.engine.graph.pending_graph import PendingGraph, Value, buffers_made
from xla_core.engine.graph.signature import fill


class Operation(NamedTuple):
    """A recorded operation. name: the overload, such as `aten.add.Tensor`; text: the same in every process; line: the user's.

    slot: where it stands in the program; operands: the slots it takes. target: the functional form that lowers it, as `register_op` and
    the edits of graphs name it (`aten::add.Tensor`, also where `add_` was called); empty for what has none, such as reads of views.
    """

    name: str
    text: str
    line: str | None
    slot: int
    operands: tuple[int, ...]
    target: str = ""


@dataclass(frozen=True, slots=True)
class Operand:
    """A value in a program: an input, a result of an operation, or a number that enters with the program.

    shape, dtype: None for a Python number. text: both, such as `f32[32,784]`. nbytes: on the device.
    """

    slot: int
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    text: str
    nbytes: int


_NO_DIGITS = str.maketrans("", "", string.digits)  # names of views have sizes in them


class NumberPlace(NamedTuple):
    """A number in the user's code, whatever the shapes there.

    name: of the operation at that line that takes the number as its `operand`; turn: counts how often the program came by.
    """

    line: str
    name: str
    operand: int
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Graph:
    """A program: `entries` by slot, `outs` the slots of its results, `dead` the leaves whose buffers nobody else holds.

    `dead` numbers leaves in order of their slots (0 is the first buffer). `lines` are the user's, where captured; not part of
    the program.
    """

    entries: tuple[Entry, ...]
    outs: tuple[int, ...]
    dead: tuple[int, ...] = ()
    lines: Mapping[int, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal exactly for equal programs of this process."""
        return (self.entries, self.outs, self.dead)

    def operations(self) -> Iterator[Operation]:
        """The recorded operations, in order."""
        for slot, entry in enumerate(self.entries):
            if type(entry) is tuple:
                yield self._operation(slot)

    def inputs(self) -> Iterator[Operand]:
        """The buffers it takes, in order."""
        for slot, entry in enumerate(self.entries):
            if type(entry) is Aval:
                yield self.operand(slot)

    def operand(self, slot: int) -> Operand:
        """The value at a slot, to be asked for its shape and dtype, or to be an argument of an operation."""
        aval, entry = aval_at(self.entries, slot), self.entries[slot]
        if aval is None:
            return Operand(slot, None, None, entry.kind.value if isinstance(entry, ScalarInput) else "none", 0)
        return Operand(slot, aval.shape, aval.dtype, repr(aval), aval.nbytes)

    def arguments(self, operation: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an operation, by place and by name as the schema of its `target` has them: operands, and constants."""
        entry: Any = self.entries[operation.slot]
        signature, *slots = entry
        taken = iter([self.operand(slot) for slot in slots])
        args = tuple(fill(argument, taken) for argument in signature.args)
        return args, {name: fill(argument, taken) for name, argument in signature.kwargs.items()}

    def results_of(self, operation: Operation) -> tuple[Operand, ...]:
        """The values that an operation computes."""
        return tuple(self.operand(slot) for slot in result_slots(self.entries, operation.slot))

    def users(self, *operands: Operand) -> list[Operation]:
        """The operations that take any of these values, in order."""
        slots = {operand.slot for operand in operands}
        return [self._operation(at) for at, entry in enumerate(self.entries) if type(entry) is tuple and not slots.isdisjoint(entry[1:])]

    def maker(self, operand: Operand) -> Operation | None:
        """The operation that computes a value; None for an input or a number."""
        slot = operation_at(self.entries, operand.slot)
        return self._operation(slot) if type(self.entries[slot]) is tuple else None

    def numbers(self) -> list[int]:
        """The slots of the Python numbers that it was compiled with, floats before integers, as `CompileEvent.constants` has them."""
        fixed = [(slot, entry.kind) for slot, entry in enumerate(self.entries) if isinstance(entry, ScalarInput) and entry.fixed]
        return [slot for wanted in (ScalarKind.FLOAT, ScalarKind.INT) for slot, kind in fixed if kind is wanted]

    def places(self) -> list[NumberPlace | None]:
        """For each of `numbers()`, where in the user's code it is; None where no line is known."""
        users: dict[int, NumberPlace] = {}
        seen: Counter[NumberPlace] = Counter()
        for slot, entry in enumerate(self.entries):
            line = self.line(slot)
            if type(entry) is tuple and line is not None:
                for operand, taken in enumerate(entry[1:]):
                    if type(self.entries[taken]) is ScalarInput:
                        place = NumberPlace(line, entry[0].name.translate(_NO_DIGITS), operand)
                        users[taken] = place._replace(turn=seen[place])
                        seen[place] += 1
        return [users.get(slot) for slot in self.numbers()]

    def scheduled(self) -> set[int]:
        """Which of `numbers()` optimizers use: they may be others in the next step."""
        taken = {slot for entry in self.entries if type(entry) is tuple and entry[0].scheduled for slot in entry[1:]}
        return {number for number, slot in enumerate(self.numbers()) if slot in taken}

    def results(self) -> Iterator[Operation | None]:
        """The operation that computes each result, in order; None for an input that is handed through."""
        for slot in self.outs:
            place = operation_at(self.entries, slot)
            yield self._operation(place) if type(self.entries[place]) is tuple else None

    def _operation(self, slot: int) -> Operation:
        entry = operation(self, slot)
        return Operation(entry[0].name, entry[0].text(), self.line(slot), slot, entry[1:], entry[0].target)

    def line(self, slot: int) -> str | None:
        """The user's line of the operation at `slot`: of this very call if captured, else where its signature was first seen."""
        entry = self.entries[slot]
        return self.lines.get(slot) or (entry[0].line if type(entry) is tuple else None)


@dataclass(slots=True)
class Inputs:
    """The inputs of a graph, in slot order within each list. `fixed_*` are compiled in until they vary."""

    buffers: list[Any]
    floats: list[float]
    fixed_floats: list[float]
    ints: list[int]
    fixed_ints: list[int]
    seeds: list[int]


def inputs_of(entries: list[Entry], input_data: dict[int, Any]) -> Inputs:
    """Sort the input data of a pending graph by kind."""
    inputs = Inputs([], [], [], [], [], [])
    buffers = inputs.buffers
    for slot, payload in input_data.items():
        entry = entries[slot]
        if type(entry) is Aval:
            buffers.append(payload)
        elif isinstance(entry, ScalarInput):
            _column(inputs, entry).append(payload)
    return inputs


def _column(inputs: Inputs, scalar: ScalarInput) -> list[Any]:
    if scalar.kind is ScalarKind.FLOAT:
        return inputs.fixed_floats if scalar.fixed else inputs.floats
    if scalar.kind is ScalarKind.INT:
        return inputs.fixed_ints if scalar.fixed else inputs.ints
    return inputs.seeds


def operation_at(entries: Sequence[Entry], slot: int) -> int:
    """The slot of the operation, leaf or scalar input that defines the value at `slot`."""
    if entries[slot] is None:
        while type(entries[slot]) is not tuple:
            slot -= 1
    return slot


def result_slots(entries: Sequence[Entry], slot: int) -> list[int]:
    """The slots of the results of the operation at `slot`: its own, or those behind it."""
    entry = entries[slot]
    count = len(entry[0].outs) if type(entry) is tuple else 1
    return [slot] if count == 1 else list(range(slot + 1, slot + 1 + count))


def ancestors(pending_graph: PendingGraph, slots: Iterable[int]) -> list[int]:
    """The slots of all leaves, scalar inputs and operations that `slots` need, ascending."""
    entries = pending_graph.entries
    seen: set[int] = set()
    stack = [operation_at(entries, slot) for slot in slots]
    while stack:
        slot = stack.pop()
        if slot in seen:
            continue
        seen.add(slot)
        entry = entries[slot]
        if type(entry) is tuple:
            for operand in entry[1:]:
                stack.append(operation_at(entries, operand) if entries[operand] is None else operand)
    return sorted(seen)


def dependants(pending_graph: PendingGraph, slots: Iterable[int]) -> set[int]:
    """`slots`, of operations or leaves, and the slots of all that is computed from them; results of operations included."""
    bad = set(slots)
    for slot, entry in enumerate(pending_graph.entries):
        if type(entry) is tuple:
            if slot in bad or not bad.isdisjoint(entry[1:]):
                count = len(entry[0].outs)
                bad.update(range(slot, slot + (1 if count == 1 else 1 + count)))
    return bad


def extract(pending_graph: PendingGraph, slots: list[int]) -> tuple[list[Entry], dict[int, int], dict[int, Any]]:
    """Copy `slots` (closed under ancestors, ascending) to a new numbering: entries, old slot → new slot, input data."""
    if len(slots) == len(pending_graph.entries):
        return list(pending_graph.entries), dict(zip(slots, slots, strict=True)), dict(pending_graph.input_data)
    entries: list[Entry] = []
    renamed: dict[int, int] = {}
    input_data: dict[int, Any] = {}
    for slot in slots:
        if slot in renamed:
            continue
        entry = pending_graph.entries[slot]
        block = [slot]
        if type(entry) is tuple and len(entry[0].outs) > 1:
            # Results stay right behind their operation; one that a read has computed is a leaf among them.
            block = list(range(slot, slot + len(entry[0].outs) + 1))
        for old in block:
            new = renamed[old] = len(entries)
            copied = pending_graph.entries[old]
            if type(copied) is tuple:
                copied = (copied[0], *[renamed[operand] for operand in copied[1:]])
            elif copied is not None:
                input_data[new] = pending_graph.input_data[old]
            entries.append(copied)
    return entries, renamed, input_data


def renamed_lines(pending_graph: PendingGraph, renamed: Mapping[int, int]) -> dict[int, str]:
    """The user's lines that were captured, by new slot."""
    return {renamed[slot]: line for slot, line in pending_graph.lines.items() if slot in renamed}


def live_slots(pending_graph: PendingGraph) -> list[int]:
    """Slots of pending values that somebody still holds, ascending."""
    input_data = pending_graph.input_data
    live = [slot for slot, reference in enumerate(pending_graph.refs) if reference() is not None]
    return [slot for slot in live if slot not in input_data]


def live_values(pending_graph: PendingGraph) -> list[Value]:
    """The pending values that somebody still holds, in the order of their slots, held by this list."""
    return [value for slot in live_slots(pending_graph) if (value := pending_graph.refs[slot]()) is not None]


def dead_leaves(pending_graph: PendingGraph) -> tuple[int, ...]:
    """Numbers of the leaves whose buffers nobody but the pending graph holds; not of small ones, whose memory is worth no other program.

    So a prompt that is still held is read by the same program as the tokens that follow it.
    """
    entries, refs = pending_graph.entries, pending_graph.refs
    leaves: list[Any] = [slot for slot in pending_graph.input_data if type(entries[slot]) is Aval]
    return tuple([number for number, slot in enumerate(leaves) if refs[slot]() is None and not entries[slot].small])


def results_of_side_effects(pending_graph: PendingGraph, slots: Iterable[int]) -> list[int]:
    """The results, not computed yet, of those operations among `slots` that must not run twice, ascending."""
    found = []
    for slot in slots:
        entry = pending_graph.entries[slot]
        if type(entry) is tuple and entry[0].has_side_effects:
            found.extend([result for result in result_slots(pending_graph.entries, slot) if result not in pending_graph.input_data])
    return found


def wanted_outside(pending_graph: PendingGraph, slots: Iterable[int]) -> set[int]:
    """The pending results among `slots` (closed under ancestors) that operations outside, which lead to something alive, read.

    A loop that reads a value of the last turn while the next turn is pending would otherwise carry all turns along: nobody holds the
    state of the last turn, and each read would compute it anew, in a longer program.
    """
    inside = set(slots)
    outside = [slot for slot in ancestors(pending_graph, live_slots(pending_graph)) if slot not in inside]
    read: set[int] = set()
    for slot in outside:
        entry = pending_graph.entries[slot]
        if type(entry) is tuple:
            read.update(entry[1:])
    return {slot for slot in read if slot not in pending_graph.input_data and operation_at(pending_graph.entries, slot) in inside}


def store_results(pending_graph: PendingGraph, slots: list[int], buffers: list[Any]) -> None:
    """Turn pending results that were computed into leaves; whoever holds them follows."""
    for slot, buffer in zip(slots, buffers, strict=True):
        value: Value | None = pending_graph.refs[slot]()
        if value is not None:
            value.buffer = buffer
            next(buffers_made)
        # Also of values that nobody holds any more: pending operations read them.
        pending_graph.entries[slot] = aval_at(pending_graph.entries, slot)
        pending_graph.input_data[slot] = buffer
    # In slot order: the arguments of a program, and the numbers of dead leaves, follow the dictionary.
    pending_graph.input_data = dict(sorted(pending_graph.input_data.items()))


def shrink(pending_graph: PendingGraph, slots: list[int]) -> None:
    """Drop from `pending_graph` all but `slots` (closed under ancestors, ascending); live values follow to their new places."""
    entries, renamed, input_data = extract(pending_graph, slots)
    refs = [pending_graph.refs[old] for old in renamed]
    for old, new in renamed.items():
        value: Value | None = pending_graph.refs[old]()
        if value is not None and value.pending_graph is pending_graph and value.slot == old:
            value.slot = new
    reads = {
        (renamed[base], spec): renamed[slot] for (base, spec), slot in pending_graph.reads.items() if base in renamed and slot in renamed
    }
    lines = renamed_lines(pending_graph, renamed)
    pending_graph.filled = [(holder, renamed[slot], number) for holder, slot, number in pending_graph.filled if slot in renamed]
    dropped = [reference() for slot, reference in enumerate(pending_graph.refs) if slot not in renamed]
    for value in dropped:
        if value is not None and value.pending_graph is pending_graph:
            value.pending_graph = None  # a leaf that no pending operation reads
    pending_graph.entries, pending_graph.refs, pending_graph.input_data, pending_graph.reads, pending_graph.lines = (
        entries,
        refs,
        input_data,
        reads,
        lines,
    )


def keep_live(pending_graph: PendingGraph) -> None:
    """Drop what nothing alive needs."""
    shrink(pending_graph, ancestors(pending_graph, [operation_at(pending_graph.entries, slot) for slot in live_slots(pending_graph)]))


def operation(graph: Graph, slot: int) -> tuple[Any, ...]:
    """The operation entry at `slot`: its signature, then the slots of its operands."""
    entry = graph.entries[slot]
    if type(entry) is not tuple:
        raise InternalError(f"slot {slot} holds {entry}, not an operation")
    return entry


def aval_at(entries: Sequence[Entry], slot: int) -> Aval | None:
    """Shape and dtype of the value at `slot`; None for a Python number or an absent result."""
    entry = entries[slot]
    if isinstance(entry, ScalarInput):
        return entry.aval
    if isinstance(entry, Aval):
        return entry
    start = slot
    while type(entry) is not tuple:
        start -= 1
        entry = entries[start]
    outs: tuple[Aval | None, ...] = entry[0].outs
    return outs[0] if len(outs) == 1 else outs[slot - start - 1]
