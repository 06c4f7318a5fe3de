"""How often the body of a loop runs: as the compiler notes it, else from the numbers that its condition looks at.

XLA:TPU notes nothing of loops whose counter has 64 bits, which it takes apart into two numbers of 32.

Source of the fields: `xla/service/hlo.proto` of openxla/xla.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from xla_debug.plan.constants import constant_of
from xla_debug.plan.hlo import Computation, Instruction, Program

_TUPLE_INDEX, _PARAMETER_NUMBER, _DIRECTION = 13, 9, 63
_MOST_TURNS = 4096  # that are gone through one by one
_MOST = 1 << 40
_SAME = {"copy", "bitcast", "convert", "reshape", "copy-done", "copy-start"}
_BINARY: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "minimum": min,
    "maximum": max,
}
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}
State = dict[int, int]
"""Values of some elements of a loop's tuple, by their index."""


def trips(program: Program, loop: Instruction) -> int:
    """How often the body of a `while` runs; 1 where that is not known when it is compiled."""
    if "known_trip_count" in loop.config:
        return loop.trips
    condition, body = (program.computations[number] for number in _condition_and_body(program, loop))
    watched = _watched(program, condition, body)
    state: State = {}
    for index in watched:
        begin = _element(program, loop.operands[0], index)
        value = None if begin is None else constant_of(program, begin)
        if value is None or value.size != 1:
            return 1
        state[index] = int(value.reshape(-1)[0])
    return _turns(lambda now: _root(program, condition, now), lambda now: _next(program, body, watched, now), state)


def _turns(goes_on: Callable[[State], int | None], following: Callable[[State], State | None], state: State) -> int:
    """How often a loop turns from a state on: one by one, or by search once its numbers grow evenly."""
    states = [state]
    for turn in range(_MOST_TURNS):
        on = goes_on(states[-1])
        if on is None:
            return 1
        if not on:
            return turn
        after = following(states[-1])
        if after is None:
            return 1
        states.append(after)
        if turn == 2 and (found := _evenly(goes_on, states)) is not None:
            return found
    return 1


def _evenly(goes_on: Callable[[State], int | None], states: Sequence[State]) -> int | None:
    """The first turn at which a condition fails, if each number of the state grows by the same in each of the first turns; else None."""
    steps = [{index: after[index] - before[index] for index in before} for before, after in zip(states, states[1:], strict=False)]
    if any(step != steps[0] for step in steps):
        return None

    def at(turn: int) -> State:
        return {index: value + turn * steps[0][index] for index, value in states[0].items()}

    low, high = len(states) - 2, len(states) - 1
    while goes_on(at(high)):
        low, high = high, 2 * high
        if high > _MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if goes_on(at(middle)) else (low, middle)
    return high


def _condition_and_body(program: Program, loop: Instruction) -> tuple[int, int]:
    """The condition gives one truth value; the body what the loop does."""
    first, second = loop.called
    root = program.by_id[program.computations[first].root]
    return (first, second) if [array.dtype for array in root.arrays] == ["bool"] else (second, first)


def _watched(program: Program, condition: Computation, body: Computation) -> list[int]:
    """The elements of the tuple on which the condition depends, in this turn or a later one."""
    found = _used(program, program.by_id[condition.root])
    while True:
        more = found | {
            index
            for each in found
            for root in [_element(program, body.root, each)]
            if root is not None
            for index in _used(program, program.by_id[root])
        }
        if more == found:
            return sorted(found)
        found = more


def _used(program: Program, root: Instruction) -> set[int]:
    """The elements of its computation's tuple from which an instruction is computed."""
    found, seen, pending = set(), set(), [root]
    while pending:
        op = pending.pop()
        if op.id in seen:
            continue
        seen.add(op.id)
        operands = [program.by_id[number] for number in op.operands if number in program.by_id]
        if op.opcode == "get-tuple-element" and operands and operands[0].opcode == "parameter":
            found.add(op.message.number(_TUPLE_INDEX))
        else:
            pending += operands
    return found


def _element(program: Program, number: int, index: int) -> int | None:
    """The id of what an element of a tuple is; None for a tuple that is made elsewhere."""
    op = program.by_id[number]
    while op.opcode in _SAME | {"opt-barrier"}:
        op = program.by_id[op.operands[0]]
    return op.operands[index] if op.opcode == "tuple" else None


def _root(program: Program, computation: Computation, state: State) -> int | None:
    return _value(program, program.by_id[computation.root], state, {}, {})


def _next(program: Program, body: Computation, watched: Sequence[int], state: State) -> State | None:
    """The state after a turn; None where it is not known."""
    values: dict[int, int | None] = {}
    after: State = {}
    for index in watched:
        element = _element(program, body.root, index)
        value = None if element is None else _value(program, program.by_id[element], state, {}, values)
        if value is None:
            return None
        after[index] = value
    return after


def _value(program: Program, op: Instruction, state: State, given: Mapping[int, int | None], values: dict[int, int | None]) -> int | None:
    """A scalar's value. given: of a fusion's parameters, by their number; values: of what was computed before."""
    if op.id not in values:
        values[op.id] = _computed(program, op, state, given, values)
    return values[op.id]


def _computed(
    program: Program, op: Instruction, state: State, given: Mapping[int, int | None], values: dict[int, int | None]
) -> int | None:
    if op.opcode == "constant":
        literal = constant_of(program, op.id)
        return None if literal is None or literal.size != 1 else int(literal.reshape(-1)[0])
    if op.opcode == "parameter":
        return given.get(op.message.number(_PARAMETER_NUMBER))
    if op.opcode == "get-tuple-element" and program.by_id[op.operands[0]].opcode == "parameter":
        return state.get(op.message.number(_TUPLE_INDEX))
    if len(op.arrays) != 1 or op.arrays[0].elements != 1 or op.arrays[0].dtype.startswith(("f", "bf", "c")):
        return None
    inputs = [_value(program, program.by_id[number], state, given, values) for number in op.operands]
    if op.opcode == "fusion":
        inside = program.computations[op.called[0]]
        return _value(program, program.by_id[inside.root], {}, dict(enumerate(inputs)), {})
    known = [each for each in inputs if each is not None]
    if len(known) != len(inputs) or not known:
        return None
    return _scalar(op, known)


def _scalar(op: Instruction, inputs: Sequence[int]) -> int | None:
    if op.opcode in _SAME:
        return inputs[0]
    if op.opcode == "bitcast-convert":
        bits = op.arrays[0].bits
        unsigned = inputs[0] % (1 << bits)
        return unsigned - (1 << bits) if op.arrays[0].dtype.startswith("s") and unsigned >> (bits - 1) else unsigned
    if op.opcode == "compare":
        return int(_COMPARED[op.message.text(_DIRECTION)](inputs[0], inputs[1]))
    if op.opcode == "select":
        return inputs[1] if inputs[0] else inputs[2]
    if op.opcode == "not":
        return 1 - inputs[0] if op.arrays[0].dtype == "bool" else ~inputs[0]
    return _BINARY[op.opcode](inputs[0], inputs[1]) if op.opcode in _BINARY else None
