"""How many bytes an instruction reads from a device's main memory and writes there.

What takes a slice of an array reads the slice, and what writes a slice into an array leaves the rest alone, also inside of a fusion: the
layers of a loop lie in one array, of which each turn sees its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from xla_debug.plan.hlo import Computation, Instruction, Program

_PARAMETER_NUMBER = 9  # field of `HloInstructionProto` in `xla/service/hlo.proto` of openxla/xla
_SLICED = {"dynamic-slice", "slice", "gather"}
_NAMES = {"bitcast", "reshape", "get-tuple-element"}


def accessed(program: Program, op: Instruction) -> int:
    """Bytes read and written by one run of an instruction."""
    read = sum(_read(program, op, position) for position, number in enumerate(op.operands) if number in program.by_id)
    return read + _written(program, op)


def _read(program: Program, op: Instruction, position: int) -> int:
    operand = program.by_id[op.operands[position]]
    whole, stored = operand.nbytes, _stored(operand)
    return min(whole, int(whole / stored * _needed(program, op, position))) if whole else 0


def _needed(program: Program, op: Instruction, position: int) -> int:
    """Bytes that an instruction needs of the operand at a position, wherever they are."""
    whole = _stored(program.by_id[op.operands[position]])
    fused = _fused(program, op)
    if fused is not None:
        parameter = next((each for each in fused.instructions if _is_parameter(each, position)), None)
        users = () if parameter is None else _users(fused, parameter)
        return whole if parameter is None else min(whole, sum(_needed(program, user, place) for user, place in users))
    if position == 0 and op.opcode in _SLICED:
        return min(whole, _stored(op))
    # Written in place; what a fusion only passes on is not moved.
    return 0 if op.opcode == "tuple" or (position == 0 and op.opcode == "dynamic-update-slice") else whole


def _users(fused: Computation, parameter: Instruction) -> Iterator[tuple[Instruction, int]]:
    """The instructions of a fusion that use a parameter, under whatever name, and at which position."""
    names = {parameter.id}
    for op in fused.instructions:
        for position, number in enumerate(op.operands):
            if number not in names:
                continue
            if op.opcode in _NAMES:
                names.add(op.id)
            else:
                yield op, position


def _written(program: Program, op: Instruction) -> int:
    fused = _fused(program, op)
    if fused is None:
        return min(op.nbytes, _stored(program.by_id[op.operands[1]])) if op.opcode == "dynamic-update-slice" else op.nbytes
    root = program.by_id[fused.root]
    several = root.opcode == "tuple"  # among which it may pass parameters on; one alone that names a parameter is a copy of it
    results = [program.by_id[number] for number in root.operands] if several else [root]
    made = [(result, array.stored) for result, array in zip(results, op.made, strict=False) if not array.space]
    return sum(_changed(program, result, whole, passed=0 if several else whole) for result, whole in made)


def _changed(program: Program, result: Instruction, whole: int, passed: int) -> int:
    """Bytes that a fusion changes in the memory of one of its results. whole: of which it is; passed: for one that is a parameter."""
    while (fused := _fused(program, result)) is not None or (result.opcode in _NAMES and result.operands[0] in program.by_id):
        result = program.by_id[result.operands[0] if fused is None else fused.root]
    if result.opcode == "dynamic-update-slice":
        return min(whole, _stored(program.by_id[result.operands[1]]))
    return passed if result.opcode == "parameter" else whole


def _fused(program: Program, op: Instruction) -> Computation | None:
    return program.computations[op.called[0]] if op.opcode == "fusion" and op.called else None


def _is_parameter(op: Instruction, position: int) -> bool:
    return op.opcode == "parameter" and op.message.number(_PARAMETER_NUMBER) == position


def _stored(op: Instruction) -> int:
    return sum(array.stored for array in op.made)
