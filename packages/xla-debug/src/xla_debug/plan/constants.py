"""Operands that no turn of a loop changes, and the values of those that are constants of the program.

Source of the fields: `xla/service/hlo.proto` and `xla/xla_data.proto` of openxla/xla.
"""

from __future__ import annotations

import numpy as np

from xla_debug.plan.hlo import Instruction, Program, signed
from xla_debug.profiling.wire_format import Message

_LITERAL, _TUPLE_INDEX = 8, 13
# Of a literal: dtype → the field of its values. Bytes as they are, other integers as numbers.
_BYTES, _NUMBERS = {"s8": (15, np.int8), "u8": (3, np.uint8)}, {"bool": 2, "s32": 4, "s64": 5, "u32": 6, "u64": 7}
_NAMES = {"copy", "copy-start", "copy-done", "bitcast", "reshape", "opt-barrier"}
_MOST_HOPS = 64


def constant_of(program: Program, operand: int) -> np.ndarray | None:
    """The integers behind an operand, by its id; None where it is no constant."""
    indices: list[int] = []  # of the tuples that are still to be opened
    op: Instruction | None = program.by_id.get(operand)
    for _ in range(_MOST_HOPS):
        if op is None:
            return None
        if op.opcode == "constant":
            return None if indices else _literal(op)
        if op.opcode == "get-tuple-element":
            indices.append(op.message.number(_TUPLE_INDEX))
            op = program.by_id.get(op.operands[0])
        elif op.opcode == "tuple" and indices:
            op = program.by_id.get(op.operands[indices.pop()])
        elif op.opcode == "parameter" and indices:
            op = _handed_to(program, op, indices[-1])
        elif op.opcode in _NAMES:
            op = program.by_id.get(op.operands[0])
        else:
            return None
    return None


def same_each_turn(program: Program, operand: int) -> bool:
    """Whether an operand within a loop, by its id, is what the loop started with, handed on by each turn."""
    op = program.by_id[operand]
    while op.opcode in _NAMES:
        op = program.by_id[op.operands[0]]
    if op.opcode != "get-tuple-element" or program.by_id[op.operands[0]].opcode != "parameter":
        return False
    return _handed_to(program, program.by_id[op.operands[0]], op.message.number(_TUPLE_INDEX)) is not None


def _handed_to(program: Program, parameter: Instruction, index: int) -> Instruction | None:
    """What a loop starts with, the tuple of which its body gets `parameter`; None where its turns change the element at `index`."""
    loop = program.loops.get(program.within[parameter.id])
    if loop is None:
        return None
    body = program.computations[program.within[parameter.id]]
    root = program.by_id[body.root]
    if root.opcode != "tuple":
        return None
    result = program.by_id[root.operands[index]]
    while result.opcode in _NAMES:
        result = program.by_id[result.operands[0]]
    kept = result.opcode == "get-tuple-element" and result.message.number(_TUPLE_INDEX) == index and result.operands[0] == parameter.id
    return program.by_id.get(loop.operands[0]) if kept else None


def _literal(op: Instruction) -> np.ndarray | None:
    literal, array = Message(op.message.part(_LITERAL)), op.arrays[0]
    if array.dtype in _BYTES:
        field, dtype = _BYTES[array.dtype]
        values = np.frombuffer(literal.part(field), dtype)
    elif array.dtype in _NUMBERS:
        values = np.array([signed(number) for number in literal.numbers(_NUMBERS[array.dtype])], np.int64)
    else:
        return None
    if values.size == 1:
        values = np.full(array.dims, values[0])
    return values.reshape(array.dims) if values.size == array.elements else None
