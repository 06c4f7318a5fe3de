"""Compares two recorded calls of a function."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import zip_longest
from operator import is_
from typing import Any, TypeAlias

from xla_core.engine.graph.entries import ScalarKind
from xla_core.engine.graph.graph import Graph
from xla_core.engine.tracing.numbers import Expression
from xla_core.engine.tracing.origins import Argument, Constant, State
from xla_core.features.captured.places import same
from xla_core.features.captured.recorded import Recorded
from xla_core.features.captured.results import Computed

Taken: TypeAlias = tuple[list[float], list[float], list[Any]]
"""What a program takes and gives for present numbers: floats, those that are part of its text, and the numbers among its results."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two calls. slot: if operations differ, the slot in the second call."""

    text: str
    slot: int | None = None


def difference(old: Recorded, new: Recorded, numbers: Taken | None = None) -> Difference | None:
    """The first difference because of which one program cannot serve both calls, with the user's lines; None if there is none.

    numbers: what the program of the old call takes for the new one, if that is verified; None to compare how the numbers are computed.
    """
    mismatch = _of_programs(old, new) or (_of_formulas(old, new) if numbers is None else _of_values(old, new, numbers))
    if mismatch is None:
        text = (
            _of_sources(old, new)
            or _of_gradients(old, new)
            or _of_results(old, new, None if numbers is None else numbers[2])
            or _of_counts(old, new)
        )
        mismatch = None if text is None else Difference(text)
    return mismatch


def explanation(old: Recorded, new: Recorded) -> str | None:
    """What two calls found different that they both read, in words; None if nothing that can be seen."""
    if old.objects is None or new.objects is None:
        return None
    for key, read in new.objects.reads.items():
        before = old.objects.reads.get(key)
        if before is not None and before.read and read.read and not same(read.before, before.before):
            return read.name
    for identity, members in new.objects.module_dicts.items():
        other = old.objects.module_dicts.get(identity)
        if other is not None and (
            list(other.before) != list(members.before) or not all(map(is_, other.before.values(), members.before.values()))
        ):
            return members.name
    states = [{id(leaf.tensor): leaf.before for leaf in call.leaves} for call in (old, new)]
    if states[0] != states[1]:
        return "which parameters require or have gradients"
    if [place.key for place in old.places] != [place.key for place in new.places]:
        return "what it sets in Python"
    shown = [{id(tensor): (id(data), wants) for tensor, data, wants in call.bindings} for call in (old, new)]
    if any(shown[0].get(key, now) != now for key, now in shown[1].items()):
        return "the data of a tensor, or whether it requires a gradient,"
    return None


def _calls(old: Recorded, new: Recorded) -> tuple[str, str]:
    return f"call {old.number}", f"call {new.number}"


def _of_programs(first_call: Recorded, second_call: Recorded) -> Difference | None:
    old, new = first_call.run.graph, second_call.run.graph
    if old.key == new.key:
        return None
    before, after = _calls(first_call, second_call)
    for slot, (first, second) in enumerate(zip_longest(old.entries, new.entries)):
        if first != second:
            return Difference(f"{before} has {_entry(old, slot)}, {after} {_entry(new, slot)}", slot)
    if old.outs != new.outs:
        return Difference(f"{before} keeps {len(old.outs)} results, {after} {len(new.outs)}{_other_result(old, new)}")
    return Difference(f"{before} keeps other inputs alive than {after}")


def _entry(graph: Graph, slot: int) -> str:
    if slot >= len(graph.entries):
        return "nothing more"
    entry = graph.entries[slot]
    if type(entry) is tuple:
        line = graph.line(slot)
        return f"{entry[0].name} of {', '.join(map(str, filter(None, entry[0].outs)))}{f' at {line}' if line else ''}"
    return f"an input {entry}" if slot in graph.parts.leaf_slots else "another operand"


def _other_result(old: Graph, new: Graph) -> str:
    for kept, other, which in ((new, old, "latter"), (old, new, "former")):
        for slot in kept.outs:
            if slot not in other.outs:
                line = kept.line(slot)
                return f", the {which} also {kept.parts.avals[slot]}{f' made at {line}' if line else ''}"
    return ""


def _of_formulas(old: Recorded, new: Recorded) -> Difference | None:
    """The first number that changed without a known formula."""
    first, second = old.run, new.run
    for fixed in (False, True):
        columns = [run.inputs.fixed_floats if fixed else run.inputs.floats for run in (first, second)]
        for index, (a, b) in enumerate(zip(*columns, strict=True)):
            expressions: list[Expression | None] = [run.expressions.get((fixed, index)) for run in (first, second)]
            if expressions[0] != expressions[1] or (expressions[0] is None and not _equal(a, b)):
                return _number(old, new, ScalarKind.FLOAT, fixed, index, (a, b))
    return _of_integers(old, new)


def _of_values(old: Recorded, new: Recorded, numbers: Taken) -> Difference | None:
    """The first number that is another one than the program would take."""
    for fixed, expected in zip((False, True), numbers[:2], strict=True):
        taken = new.run.inputs.fixed_floats if fixed else new.run.inputs.floats
        for index, (a, b) in enumerate(zip(expected, taken, strict=True)):
            if not _equal(float(a), float(b)):
                return _number(old, new, ScalarKind.FLOAT, fixed, index, (a, b))
    return _of_integers(old, new)


def _of_integers(old: Recorded, new: Recorded) -> Difference | None:
    for fixed in (False, True):
        columns = [run.inputs.fixed_ints if fixed else run.inputs.ints for run in (old.run, new.run)]
        for index, (a, b) in enumerate(zip(*columns, strict=True)):
            if a != b:
                return _number(old, new, ScalarKind.INT, fixed, index, (a, b))
    return None


def _equal(a: float, b: float) -> bool:
    return struct.pack("d", a) == struct.pack("d", b)


def _number(old: Recorded, new: Recorded, kind: ScalarKind, fixed: bool, index: int, values: tuple[Any, Any]) -> Difference:
    graph, (before, after) = new.run.graph, _calls(old, new)
    user = graph.user_of(graph.numbers_of(kind, fixed)[index])
    line = None if user is None else graph.line(user)
    name = "" if user is None else f" of {graph.entries[user][0].name}"  # type: ignore[index]
    return Difference(
        f"the number{name}{f' at {line}' if line else ''} was {values[0]} in {before} and {values[1]} in {after}: give it as an "
        "argument, or keep it in a tensor on the device",
        user,
    )


def _of_sources(old: Recorded, new: Recorded) -> str | None:
    if old.sources != new.sources:
        index = next(index for index, pair in enumerate(zip(old.sources, new.sources, strict=True)) if pair[0] != pair[1])
        taken = new.run.graph.parts.leaf_slots[index]
        user = new.run.graph.user_of(taken)
        line = None if user is None else new.run.graph.line(user)
        return (
            f"an input {new.run.graph.entries[taken]}{f' used at {line}' if line else ''} is another tensor, or was made of other host "
            "data, in "
            f"call {new.number}: write to the tensor that is there, with copy_(), or give it as an argument"
        )
    if set(old.aliases) != set(new.aliases):
        return f"tensors have one and the same data in call {new.number} that have not in call {old.number}, or the other way round"
    if new.objects is not None and old.pinned != new.pinned:
        return f"an argument of call {new.number} is a tensor that the function finds elsewhere, too, which was not so in call {old.number}"
    if set(old.writes) != set(new.writes):
        before, after = _calls(old, new)
        return f"{before} writes to {len(old.writes)} tensors{_kinds(old)}, {after} to {len(new.writes)}{_kinds(new)}, or others"
    return None


def _kinds(recorded: Recorded) -> str:
    kinds = {type(source) for source, _ in recorded.writes}
    return " (arguments among them)" if Argument in kinds else "" if State in kinds else " (gradients only)"


def _of_gradients(old: Recorded, new: Recorded) -> str | None:
    before, after = _calls(old, new)
    if [id(leaf.tensor) for leaf in old.leaves] != [id(leaf.tensor) for leaf in new.leaves]:
        return f"other parameters take part in {after} than in {before}"
    if old.required != new.required:
        return f"{before} and {after} set requires_grad of other arguments"
    for first, second in zip(old.leaves, new.leaves, strict=True):
        states = [(leaf.before, leaf.after, leaf.fresh, leaf.origin, leaf.spec, leaf.same_as) for leaf in (first, second)]
        if states[0] != states[1]:
            return (
                f"a parameter of shape {tuple(second.tensor.shape)} has a gradient before or after {before} or {after} only, or another one"
            )
    return None


def _of_results(old: Recorded, new: Recorded, computed: list[Any] | None) -> str | None:
    """computed: the numbers that the program of the old call would return in the new one; None to compare how they are computed."""
    before, after = _calls(old, new)
    if [place.key for place in old.places] != [place.key for place in new.places]:
        return f"{before} sets {len(old.places)} attributes or variables, {after} {len(new.places)}, or others"
    if old.tree != new.tree:
        return f"{before} returns {old.tree}, {after} {new.tree}"
    expected = iter(computed or ())
    labels = [f"result {index}" for index in range(len(new.results) - len(new.left))] + new.left
    for label, first, second in zip(labels, old.results, new.results, strict=True):
        if isinstance(first, Computed) and computed is not None:
            number = next(expected)
            if not isinstance(second, (Computed, Constant)) or number != second.value:
                return f"{label} would be {number} by what was captured, and is {getattr(second, 'value', second)} in {after}"
        elif isinstance(first, Constant) and isinstance(second, Constant):
            if not same(second.value, first.value):
                return f"{label} is {first.value!r} in {before} and {second.value!r} in {after}"
        elif first != second:
            return f"{label} is {first} in {before} and {second} in {after}"
    return None if old.new == new.new else f"the results show other data in {after} than in {before}"


def _of_counts(old: Recorded, new: Recorded) -> str | None:
    first, second = ({id(counter.tensor): counter.advance for counter in recorded.counters} for recorded in (old, new))
    if first != second:
        return "an optimizer's state on the CPU changes in another way in each call: construct it with capturable=True if it has that"
    if (old.seeds, old.drawn, old.steps) != (new.seeds, new.drawn, new.steps):
        return f"{' and '.join(_calls(old, new))} draw different counts of random numbers"
    return None
