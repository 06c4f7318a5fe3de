"""Explain why a program is not among those that are known: how it differs from the nearest of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest

from xla_core.engine.graph.view import GraphView, Operation

_SIMILAR = 0.5
"""Share of its operations that the nearest program must have for the two to be compared."""

_NUMBER = re.compile(r"-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)|True|False", re.IGNORECASE)
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


class Change(Enum):
    """How a program differs from the nearest one that is known."""

    FIRST = "first"
    """No similar program is known."""
    INPUT_SHAPE = "input shape"
    INPUT_DTYPE = "input dtype"
    INPUT_COUNT = "inputs"
    CONSTANT = "constant"
    """A Python number that does not shape the program: it is an input from now on."""
    ARGUMENT = "argument"
    """A Python number or option that shapes the program."""
    OPERATION_ADDED = "operation added"
    OPERATION_REMOVED = "operation removed"
    OPERATION_CHANGED = "operation changed"
    RESULTS = "results"
    """The same operations; another set of their results is kept."""
    MEMORY = "memory"
    """The same program; other inputs may be overwritten."""
    SETTINGS = "settings"
    """The same program under other settings or shardings."""


@dataclass(frozen=True, slots=True)
class ProgramDifference:
    """The difference between a program and the nearest known one: described in `text`, with the user's line that causes it, and advice.

    nearest: that program; None if none is similar.
    """

    change: Change
    text: str
    line: str | None = None
    advice: str = ""
    nearest: KnownProgram | None = None


@dataclass(frozen=True, slots=True)
class KnownProgram:
    """The parts of a program that are compared. users: the first user of each input. Does not keep the graph.

    line: of the sync or read that asked for it. constants: the numbers that it was compiled with. name: any text that tells it from others.
    """

    line: str | None
    operations: tuple[Operation, ...]
    names: Counter[str]
    inputs: tuple[str, ...]
    users: tuple[Operation | None, ...]
    constants: tuple[float, ...]
    constant_users: tuple[Operation | None, ...]
    results: tuple[Operation | None, ...]
    dead: tuple[int, ...]
    name: str

    @classmethod
    def of(cls, graph: GraphView, constants: Sequence[float], line: str | None, name: str) -> KnownProgram:
        """Read the parts of a graph."""
        operations = tuple(graph.operations())
        first_user: dict[int, Operation] = {}
        # Backwards, so that the first user of a slot remains.
        for operation in reversed(operations):
            first_user.update(dict.fromkeys(operation.operands, operation))
        inputs = tuple(graph.inputs())
        return cls(
            line,
            operations,
            Counter(map(_kind, operations)),
            tuple(graph_input.text for graph_input in inputs),
            tuple(first_user.get(graph_input.slot) for graph_input in inputs),
            tuple(constants),
            tuple(first_user.get(slot) for slot in graph.numbers()),
            tuple(graph.results()),
            graph.dead,
            name,
        )


def explained(program: KnownProgram, known: Iterable[KnownProgram]) -> ProgramDifference:
    """Compare a program with the nearest of those that are known, of equally near ones the first."""
    nearest = max(known, key=lambda each: _similarity(each, program), default=None)
    if nearest is None or _similarity(nearest, program)[0] < _SIMILAR:
        return ProgramDifference(Change.FIRST, "no program like this one was known", program.line)
    return replace(_difference(nearest, program), nearest=nearest)


@dataclass(frozen=True, slots=True)
class LargerSize:
    """A known program that takes what it was not made for, once that is padded: in this dimension of an input, from `size` to `padded`."""

    index: int
    dim: int
    size: int
    padded: int


def larger_size(program: KnownProgram, known: Iterable[KnownProgram]) -> LargerSize | None:
    """The smallest size of known programs with the same operations to which inputs of `program` can be padded; None if there is none."""
    possible: list[LargerSize] = []
    for each in known:
        if each.names != program.names or len(each.inputs) != len(program.inputs):
            continue
        pairs = enumerate(zip(each.inputs, program.inputs, strict=True))
        padded = [_padded(index, before, now) for index, (before, now) in pairs if before != now]
        if (
            padded
            and padded[0] is not None
            and {each and (each.size, each.padded) for each in padded} == {(padded[0].size, padded[0].padded)}
        ):
            possible.append(padded[0])
    return min(possible, key=lambda size: size.padded, default=None)


def _padded(index: int, known: str, now: str) -> LargerSize | None:
    (dtype_known, shape_known), (dtype, shape) = _parsed(known), _parsed(now)
    if dtype_known != dtype or len(shape_known) != len(shape):
        return None
    changed = [dim for dim, (before, size) in enumerate(zip(shape_known, shape, strict=True)) if before != size]
    if len(changed) != 1 or shape_known[changed[0]] < shape[changed[0]]:
        return None
    return LargerSize(index, changed[0], shape[changed[0]], shape_known[changed[0]])


def _similarity(known: KnownProgram, program: KnownProgram) -> tuple[float, bool, bool]:
    """The share of operations that two programs have in common; then whether inputs are equal, then lines, to decide between equals."""
    common = (known.names & program.names).total()
    return common / max(known.names.total(), program.names.total(), 1), known.inputs == program.inputs, known.line == program.line


def _difference(old: KnownProgram, new: KnownProgram) -> ProgramDifference:
    # From cause to effect: a changed operation also changes inputs, constants and results.
    difference = _operation_difference(old, new)
    if difference is None and len(old.inputs) == len(new.inputs):
        difference = _input_difference(old, new) or _argument_difference(old, new)
    difference = difference or _input_count_difference(old, new) or _constant_difference(old, new) or _result_difference(old, new)
    if difference is not None:
        return difference
    if old.dead != new.dead:
        return ProgramDifference(
            Change.MEMORY,
            f"the same program, but {len(new.dead)} of its inputs may be overwritten, {len(old.dead)} before",
            new.line,
            "something keeps (or no longer keeps) tensors of an earlier step: once steady, nothing is compiled for it again",
        )
    return ProgramDifference(
        Change.SETTINGS,
        "the same program under other settings, precision or shardings, or forgotten since",
        new.line,
        "leave precision and shardings as they are after the first step; raise XLA_COMPILATION_CACHE_SIZE if programs are forgotten",
    )


def _kind(operation: Operation) -> str:
    """An operation's name, with `#` for the numbers in names of views, such as `xla.read.select.int[0, 6]`."""
    return _NUMBER.sub("#", operation.name) if operation.name.startswith("xla.") else operation.name


def _name(operation: Operation | None) -> str:
    return "nothing" if operation is None else operation.name.partition("[")[0]


def _operation_difference(old: KnownProgram, new: KnownProgram) -> ProgramDifference | None:
    """Describe the first operation that only one of the programs has."""
    pairs = zip_longest(map(_kind, old.operations), map(_kind, new.operations))
    index = next((index for index, (before, now) in enumerate(pairs) if before != now), None)
    if index is None:
        return None
    before, now = old.operations[index:], new.operations[index:]
    growth = len(now) - len(before)
    advice = "keep Python branches and loop counts the same in each step, or let torch.where decide on the device"
    if growth > 0 and [*map(_kind, now[growth:])] == [*map(_kind, before)]:
        count = f"{growth} operations added, the first" if growth > 1 else "operation added:"
        return ProgramDifference(Change.OPERATION_ADDED, f"{count} {_name(now[0])}", now[0].line, advice)
    if growth < 0 and [*map(_kind, before[-growth:])] == [*map(_kind, now)]:
        count = f"{-growth} operations gone, the first" if growth < -1 else "operation gone:"
        return ProgramDifference(Change.OPERATION_REMOVED, f"{count} {_name(before[0])}", before[0].line, advice)
    removed, added = next(iter(before), None), next(iter(now), None)
    text = f"{_name(removed)} became {_name(added)}"
    return ProgramDifference(Change.OPERATION_CHANGED, text, (added or removed or new.operations[-1]).line, advice)


def _input_difference(old: KnownProgram, new: KnownProgram) -> ProgramDifference | None:
    """Describe the first input with another shape or dtype."""
    for index, (before, now) in enumerate(zip(old.inputs, new.inputs, strict=True)):
        if before != now:
            user = new.users[index]
            line = new.line if user is None else user.line
            text = f"input {index} is {now}, was {before}" + (f", first used by {user.name}" if user else "")
            (dtype, shape), (dtype_before, shape_before) = _parsed(now), _parsed(before)
            if dtype != dtype_before:
                return ProgramDifference(Change.INPUT_DTYPE, text, line, "give this input one dtype before it goes to the device")
            return ProgramDifference(Change.INPUT_SHAPE, text, line, _advice_on_shape(shape_before, shape))
    return None


def _parsed(text: str) -> tuple[str, list[int]]:
    match = _SHAPE.match(text)
    if match is None:
        return text, []
    return match[1], [int(size) for size in match[2].split(",") if size]


def _advice_on_shape(before: list[int], now: list[int]) -> str:
    if len(before) != len(now):
        return "give this input the same number of dimensions in each step"
    changed = [index for index, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
    if changed == [0] and now[0] < before[0]:
        return "if this is the smaller last batch, use drop_last=True in the loader, or pad it"
    return f"pad dimension {', '.join(map(str, changed))} to one size, or to a few fixed ones (buckets)"


def _argument_difference(old: KnownProgram, new: KnownProgram) -> ProgramDifference | None:
    """Describe the first operation whose arguments or operands differ."""
    for before, now in zip(old.operations, new.operations, strict=True):
        args_before, args = before.text.partition("->")[0], now.text.partition("->")[0]
        if args_before != args:
            numbers = zip_longest(_NUMBER.findall(args_before), _NUMBER.findall(args), fillvalue="nothing")
            changed = next((f"{left} became {right}" for left, right in numbers if left != right), f"{args_before} became {args}")
            return ProgramDifference(
                Change.ARGUMENT,
                f"{changed} in {_name(now)}",
                now.line,
                "this Python value shapes the program: keep it the same in each step, or put it into a tensor "
                "(torch.tensor(n, device='xla')) and select with masks or index operations",
            )
        if before.operands != now.operands:
            return ProgramDifference(
                Change.OPERATION_CHANGED, f"{_name(now)} takes other operands", now.line, "keep Python branches the same in each step"
            )
    return None


def _input_count_difference(old: KnownProgram, new: KnownProgram) -> ProgramDifference | None:
    if len(old.inputs) == len(new.inputs):
        return None
    count = f"{len(new.inputs)} inputs, {len(old.inputs)} before"
    return ProgramDifference(
        Change.INPUT_COUNT,
        count,
        new.line,
        "an optimizer's state, made in the first step, is an input of later ones; after that keep the same tensors in each step",
    )


def _constant_difference(old: KnownProgram, new: KnownProgram) -> ProgramDifference | None:
    for index, (before, now) in enumerate(zip(old.constants, new.constants, strict=False)):
        if before != now:
            user = new.constant_users[index]
            return ProgramDifference(
                Change.CONSTANT,
                f"a constant became an input: {before!r}, now {now!r}, in {_name(user) if user else 'the program'}",
                new.line if user is None else user.line,
                "nothing: programs that are compiled from now on take it as an input",
            )
    return None


def _name_and_line(result: Operation | None) -> tuple[str, str | None]:
    return _name(result), None if result is None else result.line


def _result_difference(old: KnownProgram, new: KnownProgram) -> ProgramDifference | None:
    before, now = Counter(map(_name_and_line, old.results)), Counter(map(_name_and_line, new.results))
    kept, gone = list((now - before).elements()), list((before - now).elements())
    if not kept and not gone:
        return None
    name, line = kept[0] if kept else gone[0]
    return ProgramDifference(
        Change.RESULTS,
        f"another result is kept, of {name}" if kept else f"a result is no longer kept, of {name}",
        line or new.line,
        "hold the same tensors across every step: detach() and store, or drop, what is only logged",
    )
