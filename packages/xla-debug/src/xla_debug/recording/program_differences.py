"""Explain why a program was compiled: how it differs from the nearest known program."""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from dataclasses import dataclass, replace
from itertools import zip_longest

from xla_debug.core import events
from xla_debug.core import graph as graph_abi
from xla_debug.run_report.schema import Change, ProgramDifference

_COMPARED = 64
"""How many of the newest programs a new one is compared with."""
_SIMILAR = 0.5
"""Share of its operations that the nearest program must have for the two to be compared."""

_NUMBER = re.compile(r"-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf|nan)|True|False", re.IGNORECASE)
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


@dataclass(frozen=True, slots=True)
class _CompiledProgram:
    """The parts of a compiled program that are compared. users: the first user of each input."""

    line: str | None
    operations: tuple[graph_abi.Operation, ...]
    names: Counter[str]
    inputs: tuple[str, ...]
    users: tuple[graph_abi.Operation | None, ...]
    constants: tuple[float, ...]
    constant_users: tuple[graph_abi.Operation | None, ...]
    results: tuple[graph_abi.Operation | None, ...]
    dead: tuple[int, ...]
    graph_hash: str

    @classmethod
    def of(cls, event: events.CompileEvent) -> _CompiledProgram:
        """Read the parts from the event's graph, which is not kept."""
        graph: graph_abi.Graph = event.graph
        operations = tuple(graph.operations())
        first_user: dict[int, graph_abi.Operation] = {}
        # Backwards, so that the first user of a slot remains.
        for operation in reversed(operations):
            first_user.update(dict.fromkeys(operation.operands, operation))
        inputs = tuple(graph.inputs())
        return cls(
            event.line,
            operations,
            Counter(map(_kind, operations)),
            tuple(graph_input.text for graph_input in inputs),
            tuple(first_user.get(graph_input.slot) for graph_input in inputs),
            event.constants,
            tuple(first_user.get(slot) for slot in graph.numbers()),
            tuple(graph.results()),
            graph.dead,
            event.graph_hash,
        )


class KnownPrograms:
    """The programs that a process has compiled; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs: deque[_CompiledProgram] = deque(maxlen=_COMPARED)

    def explain(self, event: events.CompileEvent) -> ProgramDifference:
        """Compare the program of `event` with the nearest known one, and add it to the known ones."""
        program = _CompiledProgram.of(event)
        with self._lock:
            # Of equally near programs the newest: `max` keeps the first that it meets.
            nearest = max(reversed(self._programs), key=lambda known: _similarity(known, program), default=None)
            self._programs.append(program)
        if nearest is None or _similarity(nearest, program)[0] < _SIMILAR:
            return ProgramDifference(Change.FIRST, "no program like this one was known", program.line)
        return replace(_difference(nearest, program), nearest=nearest.graph_hash)


def _similarity(known: _CompiledProgram, program: _CompiledProgram) -> tuple[float, bool, bool]:
    """The share of operations that two programs have in common; then whether inputs are equal, then lines, to decide between equals."""
    common = (known.names & program.names).total()
    return common / max(known.names.total(), program.names.total(), 1), known.inputs == program.inputs, known.line == program.line


def _difference(old: _CompiledProgram, new: _CompiledProgram) -> ProgramDifference:
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


def _kind(operation: graph_abi.Operation) -> str:
    """An operation's name, with `#` for the numbers in names of views, such as `xla.read.select.int[0, 6]`."""
    return _NUMBER.sub("#", operation.name) if operation.name.startswith("xla.") else operation.name


def _name(operation: graph_abi.Operation | None) -> str:
    return "nothing" if operation is None else operation.name.partition("[")[0]


def _operation_difference(old: _CompiledProgram, new: _CompiledProgram) -> ProgramDifference | None:
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


def _input_difference(old: _CompiledProgram, new: _CompiledProgram) -> ProgramDifference | None:
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


def _argument_difference(old: _CompiledProgram, new: _CompiledProgram) -> ProgramDifference | None:
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


def _input_count_difference(old: _CompiledProgram, new: _CompiledProgram) -> ProgramDifference | None:
    if len(old.inputs) == len(new.inputs):
        return None
    count = f"{len(new.inputs)} inputs, {len(old.inputs)} before"
    return ProgramDifference(
        Change.INPUT_COUNT,
        count,
        new.line,
        "an optimizer's state, made in the first step, is an input of later ones; after that keep the same tensors in each step",
    )


def _constant_difference(old: _CompiledProgram, new: _CompiledProgram) -> ProgramDifference | None:
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


def _name_and_line(result: graph_abi.Operation | None) -> tuple[str, str | None]:
    return _name(result), None if result is None else result.line


def _result_difference(old: _CompiledProgram, new: _CompiledProgram) -> ProgramDifference | None:
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
