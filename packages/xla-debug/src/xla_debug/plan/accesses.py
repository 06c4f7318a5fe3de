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
    fused = program.computations[op.called[0]] if op.opcode == "fusion" and op.called else None
    read = sum(_read(program, op, position, fused) for position, number in enumerate(op.operands) if number in program.by_id)
    return read + _written(program, op, fused)


def _read(program: Program, op: Instruction, position: int, fused: Computation | None) -> int:
    operand = program.by_id[op.operands[position]]
    whole = operand.nbytes
    if not whole:
        return 0
    if fused is None:
        return min(whole, _part(program, op, position, op))
    parameter = next((each for each in fused.instructions if _is_parameter(each, position)), None)
    if parameter is None:
        return whole
    in_main_memory = whole / max(1, sum(array.stored for array in operand.made))
    return min(whole, int(in_main_memory * sum(_part(program, user, place, user) for user, place in _users(fused, parameter))))


def _part(program: Program, op: Instruction, place: int, result: Instruction) -> int:
    """Bytes that an instruction needs of the operand at a place."""
    if place == 0 and op.opcode in _SLICED:
        return _stored(result)
    if place == 0 and op.opcode == "dynamic-update-slice":
        return 0  # written in place
    return _stored(program.by_id[op.operands[place]])


def _users(fused: Computation, parameter: Instruction) -> Iterator[tuple[Instruction, int]]:
    """The instructions of a fusion that use a parameter, under whatever name, and at which place."""
    names = {parameter.id}
    for op in fused.instructions:
        for place, number in enumerate(op.operands):
            if number not in names:
                continue
            if op.opcode in _NAMES:
                names.add(op.id)
            else:
                yield op, place


def _written(program: Program, op: Instruction, fused: Computation | None) -> int:
    if fused is None:
        return min(op.nbytes, _stored(program.by_id[op.operands[1]])) if op.opcode == "dynamic-update-slice" else op.nbytes
    by_id = {each.id: each for each in fused.instructions}
    root = by_id[fused.root]
    results = [by_id[number] for number in root.operands] if root.opcode == "tuple" else [root]
    written = 0
    for result, array in zip(results, op.made, strict=False):
        while result.opcode in _NAMES and result.operands[0] in by_id:
            result = by_id[result.operands[0]]
        in_place = result.opcode == "dynamic-update-slice"
        written += 0 if array.space else min(array.stored, _stored(by_id[result.operands[1]])) if in_place else array.stored
    return written


def _is_parameter(op: Instruction, position: int) -> bool:
    return op.opcode == "parameter" and op.message.number(_PARAMETER_NUMBER) == position


def _stored(op: Instruction) -> int:
    return sum(array.stored for array in op.made)
