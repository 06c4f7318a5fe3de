"""A program cut out of a pending graph: entries in a canonical order, results, inputs.

A step takes the whole pending graph as it is, which is why a repeated step needs no walk over its operations. A value read takes the
ancestors of the values that are read, renumbered, so that equal computations have equal keys whatever else is pending.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, cast

from xla_core.base.errors import InternalError
from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import Entry, ScalarInput, ScalarKind, result_slots
from xla_core.engine.graph.signature import Signature, fill
from xla_core.engine.graph.view import GraphView, Operand, Operation

_NO_DIGITS = str.maketrans("", "", string.digits)  # names of views have sizes in them


class NumberPlace(NamedTuple):
    """Where a number stands in the user's code, the same for all shapes.

    name: of the operation at that line that takes the number as its `operand`; turn: counts the repetitions of that in the program.
    """

    line: str
    name: str
    operand: int
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Parts:
    """The entries of a program, sorted by kind.

    leaves, scalars: the buffers and the numbers that it takes, in order; leaf_slots, scalar_slots: their slots; inputs: all of these slots.
    operations, signatures: the slots and signatures of its operations. avals, by slot: the shape and dtype of the value there, None for a
    Python number and for an absent result. makers, by slot: the slot of the operation, leaf or number that defines the value there.
    results: the avals of its results. donated: the dead leaves, by index, whose buffers a result of the same shape and dtype can take over.
    """

    leaves: tuple[Aval, ...]
    leaf_slots: tuple[int, ...]
    scalars: tuple[ScalarInput, ...]
    scalar_slots: tuple[int, ...]
    inputs: tuple[int, ...]
    operations: tuple[int, ...]
    signatures: tuple[Signature, ...]
    avals: tuple[Aval | None, ...]
    makers: tuple[int, ...]
    results: tuple[Aval | None, ...]
    donated: tuple[int, ...]


def _parts(entries: Sequence[Entry], outs: Sequence[int], dead: Sequence[int]) -> Parts:
    leaves: list[Aval] = []
    leaf_slots: list[int] = []
    scalars: list[ScalarInput] = []
    scalar_slots: list[int] = []
    operations: list[int] = []
    signatures: list[Signature] = []
    avals: list[Aval | None] = []
    makers: list[int] = []
    results: tuple[Aval | None, ...] = ()  # of the operation before
    for slot, entry in enumerate(entries):
        maker = slot
        if entry is None:
            maker = operations[-1]
            avals.append(results[slot - maker - 1])
        elif type(entry) is tuple:
            operations.append(slot)
            signatures.append(entry[0])
            results = entry[0].outs
            avals.append(results[0] if len(results) == 1 else None)
        elif isinstance(entry, ScalarInput):
            scalars.append(entry)
            scalar_slots.append(slot)
            avals.append(entry.aval)
        else:
            aval = cast(Aval, entry)
            leaves.append(aval)
            leaf_slots.append(slot)
            avals.append(aval)
        makers.append(maker)
    out_avals = tuple([avals[slot] for slot in outs])
    return Parts(
        tuple(leaves),
        tuple(leaf_slots),
        tuple(scalars),
        tuple(scalar_slots),
        tuple(sorted([*leaf_slots, *scalar_slots])),
        tuple(operations),
        tuple(signatures),
        tuple(avals),
        tuple(makers),
        out_avals,
        _donated([leaves[index] for index in dead], dead, out_avals),
    )


def _donated(avals: Sequence[Aval], indices: Sequence[int], results: Sequence[Aval | None]) -> tuple[int, ...]:
    free = Counter([(aval.shape, aval.physical) for aval in results if aval is not None])
    donated = []
    for index, aval in zip(indices, avals, strict=True):
        key = (aval.shape, aval.physical)
        if free[key]:
            free[key] -= 1
            donated.append(index)
    return tuple(donated)


@dataclass(frozen=True)
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

    @cached_property
    def parts(self) -> Parts:
        """Its entries, sorted. Worked out at first use: a program that is run again does not need them."""
        return _parts(self.entries, self.outs, self.dead)

    def operations(self) -> Iterator[Operation]:
        """The recorded operations, in order."""
        return map(self.operation, self.parts.operations)

    def inputs(self) -> Iterator[Operand]:
        """The buffers it takes, in order."""
        return map(self.operand, self.parts.leaf_slots)

    def operand(self, slot: int) -> Operand:
        """The value at a slot: it has a shape and a dtype, and edits take it as an argument."""
        aval, entry = self.parts.avals[slot], self.entries[slot]
        if aval is None:
            return Operand(slot, None, None, entry.kind.value if isinstance(entry, ScalarInput) else "none", 0)
        return Operand(slot, aval.shape, aval.dtype, repr(aval), aval.nbytes)

    def arguments(self, operation: Operation) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an operation, positional and by name, as the schema of its `target` has them: operands and constants."""
        signature, *slots = cast("tuple[Any, ...]", self.entries[operation.slot])
        operands = iter([self.operand(slot) for slot in slots])
        args = tuple(fill(argument, operands) for argument in signature.args)
        return args, {name: fill(argument, operands) for name, argument in signature.kwargs.items()}

    def results_of(self, operation: Operation) -> tuple[Operand, ...]:
        """The values that an operation computes."""
        return tuple(self.operand(slot) for slot in result_slots(self.entries, operation.slot))

    def users(self, *operands: Operand) -> list[Operation]:
        """The operations that take any of these values, in order."""
        slots = {operand.slot for operand in operands}
        return [self.operation(at) for at, (_, *taken) in self.recorded() if not slots.isdisjoint(taken)]

    def maker(self, operand: Operand) -> Operation | None:
        """The operation that computes a value; None for an input or a number."""
        return self._operation_at(self.parts.makers[operand.slot])

    def results(self) -> Iterator[Operation | None]:
        """The operation that computes each result, in order; None for an input that is returned as it is."""
        return (self._operation_at(self.parts.makers[slot]) for slot in self.outs)

    def recorded(self) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """The slots of the operations with their entries, each a signature and the slots of its operands, in order."""
        return ((slot, cast("tuple[Any, ...]", self.entries[slot])) for slot in self.parts.operations)

    def user_of(self, slot: int) -> int | None:
        """The slot of the first operation that takes the value at a slot."""
        return next((at for at, (_, *taken) in self.recorded() if slot in taken), None)

    def numbers(self) -> list[int]:
        """The slots of the Python numbers that it was compiled with, floats before integers, as `CompileEvent.constants` has them."""
        return [*self.numbers_of(ScalarKind.FLOAT, True), *self.numbers_of(ScalarKind.INT, True)]

    def numbers_of(self, kind: ScalarKind, fixed: bool) -> list[int]:
        """The slots of the numbers of one kind that are constants until they vary (`fixed`), or inputs from the start."""
        parts = self.parts
        pairs = zip(parts.scalar_slots, parts.scalars, strict=True)
        return [slot for slot, scalar in pairs if scalar.kind is kind and scalar.fixed is fixed]

    def places(self) -> list[NumberPlace | None]:
        """The place in the user's code of each of `numbers()`; None where no line is known."""
        users: dict[int, NumberPlace] = {}
        seen: Counter[NumberPlace] = Counter()
        scalars = {*self.parts.scalar_slots}
        for slot, (signature, *operands) in self.recorded() if scalars else ():
            line = self.lines.get(slot) or signature.line
            for operand, taken in enumerate(operands) if line is not None else ():
                if taken in scalars:
                    place = NumberPlace(line, signature.name.translate(_NO_DIGITS), operand)
                    users[taken] = place._replace(turn=seen[place])
                    seen[place] += 1
        return [users.get(slot) for slot in self.numbers()]

    def scheduled(self) -> set[int]:
        """The indices in `numbers()` of those that optimizers use, which may change with each step."""
        taken = {slot for _, (signature, *operands) in self.recorded() if signature.scheduled for slot in operands}
        return {index for index, slot in enumerate(self.numbers()) if slot in taken}

    def operation(self, slot: int) -> Operation:
        """The operation at a slot. Raises InternalError if none stands there."""
        signature, *operands = recorded_at(self.entries, slot)
        return Operation(signature.name, signature.text(), self.line(slot), slot, tuple(operands), signature.target)

    def _operation_at(self, slot: int) -> Operation | None:
        return self.operation(slot) if type(self.entries[slot]) is tuple else None

    def line(self, slot: int) -> str | None:
        """The user's line of the operation at `slot`: of this very call if captured, else where its signature was first seen."""
        entry = self.entries[slot]
        return self.lines.get(slot) or (entry[0].line if type(entry) is tuple else None)


def own(view: GraphView) -> Graph:
    """The graph behind a view. Raises TypeError for a view that is not one of ours."""
    if not isinstance(view, Graph):
        raise TypeError(f"{view!r} is no recorded graph: take one from graph_of, an event or a pass")
    return view


def recorded_at(entries: Sequence[Entry], slot: int) -> tuple[Any, ...]:
    """The operation entry at `slot`: its signature, then the slots of its operands. Raises InternalError if none stands there."""
    entry = entries[slot]
    if type(entry) is not tuple:
        raise InternalError(f"slot {slot} holds {entry}, not an operation")
    return entry


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
