"""A program cut out of a tape: entries in a canonical order, what comes out, what goes in.

A step takes the whole tape as it is, which is why a repeated step needs no walk over its operations. A value read takes the
ancestors of what is asked for, renumbered, so that equal computations have equal keys whatever else is pending.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xla_core.errors import InternalError
from xla_core.ir.aval import Aval
from xla_core.ir.tape import Entry, Feed, FeedKind, Tape, Value, buffers_made


class Operation(NamedTuple):
    """A recorded operation. name: the overload, such as `aten.add.Tensor`; text: the same in every process; line: the user's.

    slot: where it stands in the program; operands: the slots it takes.
    """

    name: str
    text: str
    line: str | None
    slot: int
    operands: tuple[int, ...]


class Input(NamedTuple):
    """A buffer that a program takes: where it stands, and its shape and dtype, such as `f32[32,784]`."""

    slot: int
    text: str


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

    def inputs(self) -> Iterator[Input]:
        """The buffers it takes, in order."""
        for slot, entry in enumerate(self.entries):
            if type(entry) is Aval:
                yield Input(slot, repr(entry))

    def numbers(self) -> list[int]:
        """The slots of the Python numbers that it was compiled with, floats before integers, as `CompileEvent.constants` has them."""
        fixed = [(slot, entry.kind) for slot, entry in enumerate(self.entries) if isinstance(entry, Feed) and entry.fixed]
        return [slot for wanted in (FeedKind.FLOAT, FeedKind.INT) for slot, kind in fixed if kind is wanted]

    def places(self) -> list[NumberPlace | None]:
        """For each of `numbers()`, where in the user's code it is; None where no line is known."""
        users: dict[int, NumberPlace] = {}
        seen: Counter[NumberPlace] = Counter()
        for slot, entry in enumerate(self.entries):
            line = self.line(slot)
            if type(entry) is tuple and line is not None:
                for operand, taken in enumerate(entry[1:]):
                    if type(self.entries[taken]) is Feed:
                        place = NumberPlace(line, entry[0].name.translate(_NO_DIGITS), operand)
                        users[taken] = place._replace(turn=seen[place])
                        seen[place] += 1
        return [users.get(slot) for slot in self.numbers()]

    def results(self) -> Iterator[Operation | None]:
        """The operation that computes each result, in order; None for an input that is handed through."""
        for slot in self.outs:
            place = operation_at(self.entries, slot)
            yield self._operation(place) if type(self.entries[place]) is tuple else None

    def _operation(self, slot: int) -> Operation:
        entry = operation(self, slot)
        return Operation(entry[0].name, entry[0].text(), self.line(slot), slot, entry[1:])

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


def inputs_of(entries: list[Entry], feeds: dict[int, Any]) -> Inputs:
    """Sort the feeds of a tape by kind."""
    inputs = Inputs([], [], [], [], [], [])
    buffers = inputs.buffers
    for slot, payload in feeds.items():
        entry = entries[slot]
        if type(entry) is Aval:
            buffers.append(payload)
        elif isinstance(entry, Feed):
            _column(inputs, entry).append(payload)
    return inputs


def _column(inputs: Inputs, feed: Feed) -> list[Any]:
    if feed.kind is FeedKind.FLOAT:
        return inputs.fixed_floats if feed.fixed else inputs.floats
    if feed.kind is FeedKind.INT:
        return inputs.fixed_ints if feed.fixed else inputs.ints
    return inputs.seeds


def operation_at(entries: Sequence[Entry], slot: int) -> int:
    """The slot of the operation, leaf or feed that defines the value at `slot`."""
    if entries[slot] is None:
        while type(entries[slot]) is not tuple:
            slot -= 1
    return slot


def ancestors(tape: Tape, slots: Iterable[int]) -> list[int]:
    """The slots of all leaves, feeds and operations that `slots` need, ascending."""
    entries = tape.entries
    seen: set[int] = set()
    stack = [operation_at(entries, slot) for slot in slots]
    while stack:
        slot = stack.pop()
        if slot in seen:
            continue
        seen.add(slot)
        entry = entries[slot]
        if type(entry) is tuple:
            stack.extend(operation_at(entries, operand) for operand in entry[1:])
    return sorted(seen)


def dependants(tape: Tape, slots: Iterable[int]) -> set[int]:
    """`slots`, of operations or leaves, and the slots of all that is computed from them; results of operations included."""
    bad = set(slots)
    for slot, entry in enumerate(tape.entries):
        if type(entry) is tuple:
            if slot in bad or not bad.isdisjoint(entry[1:]):
                count = len(entry[0].outs)
                bad.update(range(slot, slot + (1 if count == 1 else 1 + count)))
    return bad


def extract(tape: Tape, slots: list[int]) -> tuple[list[Entry], dict[int, int], dict[int, Any]]:
    """Copy `slots` (closed under ancestors, ascending) to a new numbering: entries, old slot → new slot, feeds."""
    entries: list[Entry] = []
    renamed: dict[int, int] = {}
    feeds: dict[int, Any] = {}
    for slot in slots:
        if slot in renamed:
            continue
        entry = tape.entries[slot]
        block = [slot]
        if type(entry) is tuple and len(entry[0].outs) > 1:
            block = list(range(slot, slot + len(entry[0].outs) + 1))
        for old in block:
            new = renamed[old] = len(entries)
            copied = tape.entries[old]
            if type(copied) is tuple:
                copied = (copied[0], *[renamed[operand] for operand in copied[1:]])
            elif copied is not None:
                feeds[new] = tape.feeds[old]
            entries.append(copied)
    return entries, renamed, feeds


def renamed_lines(tape: Tape, renamed: Mapping[int, int]) -> dict[int, str]:
    """The user's lines that were captured, by new slot."""
    return {renamed[slot]: line for slot, line in tape.lines.items() if slot in renamed}


def live_slots(tape: Tape) -> list[int]:
    """Slots of pending values that somebody still holds, ascending."""
    feeds = tape.feeds
    live = [slot for slot, reference in enumerate(tape.refs) if reference() is not None]
    return [slot for slot in live if slot not in feeds]


def dead_leaves(tape: Tape) -> tuple[int, ...]:
    """Numbers of the leaves whose buffers nobody but the tape holds."""
    entries, refs = tape.entries, tape.refs
    leaves = [slot for slot in tape.feeds if type(entries[slot]) is Aval]
    return tuple([number for number, slot in enumerate(leaves) if refs[slot]() is None])


def results_of_once(tape: Tape, slots: Iterable[int]) -> list[int]:
    """The results, not computed yet, of those operations among `slots` that must not run twice, ascending."""
    found = []
    for slot in slots:
        entry = tape.entries[slot]
        if type(entry) is tuple and entry[0].once:
            count = len(entry[0].outs)
            block = [slot] if count == 1 else range(slot + 1, slot + 1 + count)
            found.extend([result for result in block if result not in tape.feeds])
    return found


def wanted_outside(tape: Tape, slots: Iterable[int]) -> set[int]:
    """The pending results among `slots` (closed under ancestors) that operations outside, which lead to something alive, read.

    A loop that reads a value of the last turn while the next turn is pending would otherwise carry all turns along: nobody holds the
    state of the last turn, and each read would compute it anew, in a longer program.
    """
    inside = set(slots)
    outside = [slot for slot in ancestors(tape, live_slots(tape)) if slot not in inside]
    read: set[int] = set()
    for slot in outside:
        entry = tape.entries[slot]
        if type(entry) is tuple:
            read.update(entry[1:])
    return {slot for slot in read if slot not in tape.feeds and operation_at(tape.entries, slot) in inside}


def materialize(tape: Tape, slots: list[int], buffers: list[Any]) -> None:
    """Turn pending results that were computed into leaves; whoever holds them follows."""
    for slot, buffer in zip(slots, buffers, strict=True):
        value: Value | None = tape.refs[slot]()
        if value is not None:
            value.buffer = buffer
            next(buffers_made)
        tape.entries[slot] = aval_at(tape.entries, slot)
        tape.feeds[slot] = buffer
    tape.feeds = dict(sorted(tape.feeds.items()))


def shrink(tape: Tape, slots: list[int]) -> None:
    """Drop from `tape` all but `slots` (closed under ancestors, ascending); live values follow to their new places."""
    entries, renamed, feeds = extract(tape, slots)
    refs = [tape.refs[old] for old in renamed]
    for old, new in renamed.items():
        value: Value | None = tape.refs[old]()
        if value is not None and value.tape is tape and value.slot == old:
            value.slot = new
    reads = {(renamed[base], spec): renamed[slot] for (base, spec), slot in tape.reads.items() if base in renamed and slot in renamed}
    lines = renamed_lines(tape, renamed)
    tape.filled = [(holder, renamed[slot], number) for holder, slot, number in tape.filled if slot in renamed]
    dropped = [reference() for slot, reference in enumerate(tape.refs) if slot not in renamed]
    for value in dropped:
        if value is not None and value.tape is tape:
            value.tape = None  # a leaf that no pending operation reads
    tape.entries, tape.refs, tape.feeds, tape.reads, tape.lines = entries, refs, feeds, reads, lines


def keep_live(tape: Tape) -> None:
    """Drop what nothing alive needs."""
    shrink(tape, ancestors(tape, [operation_at(tape.entries, slot) for slot in live_slots(tape)]))


def operation(graph: Graph, slot: int) -> tuple[Any, ...]:
    """The operation entry at `slot`: its signature, then the slots of its operands."""
    entry = graph.entries[slot]
    if type(entry) is not tuple:
        raise InternalError(f"slot {slot} holds {entry}, not an operation")
    return entry


def aval_at(entries: Sequence[Entry], slot: int) -> Aval | None:
    """Shape and dtype of the value at `slot`; None for a Python number or an absent result."""
    entry = entries[slot]
    if isinstance(entry, Feed):
        return entry.aval
    if isinstance(entry, Aval):
        return entry
    start = slot
    while type(entry) is not tuple:
        start -= 1
        entry = entries[start]
    outs: tuple[Aval | None, ...] = entry[0].outs
    return outs[0] if len(outs) == 1 else outs[slot - start - 1]
