"""What is in a device's memory while a program runs, along its schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from xla_debug.plan.hlo import Computation, Instruction, Program

_TUPLE_INDEX = 13  # field of `HloInstructionProto` in `xla/service/hlo.proto` of openxla/xla
# Results that are names for others' memory, or are part of the code.
_NAMES = {"constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency", "domain", "after-all", "parameter"}


@dataclass(frozen=True, slots=True)
class Held:
    """A buffer. begin, end: positions in the schedule between which it is held."""

    instruction: Instruction
    nbytes: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Memory:
    """temporaries: bytes held at each position of the schedule, arguments and results not counted. largest: buffers at the peak."""

    temporaries: tuple[int, ...]
    largest: tuple[Held, ...]


def memory(program: Program) -> Memory:
    """The temporaries of a program along its schedule, as if no two buffers shared memory. Results of the program are not among them."""
    held = [*_held(program, program.entry)]
    total = _along(held, len(program.entry.instructions))
    peak = max(range(len(total)), key=total.__getitem__, default=0)
    at_peak = sorted((buffer for buffer in held if buffer.begin <= peak <= buffer.end), key=lambda buffer: -buffer.nbytes)
    return Memory(tuple(total), tuple(at_peak))


def _along(held: Iterable[Held], length: int) -> list[int]:
    """Bytes held at each position of a schedule."""
    changes = [0] * (length + 1)
    for buffer in held:
        changes[buffer.begin] += buffer.nbytes
        changes[buffer.end + 1] -= buffer.nbytes
    return list(accumulate(changes[:length]))


def _held(program: Program, computation: Computation) -> Iterable[Held]:
    positions = {op.id: position for position, op in enumerate(computation.instructions)}
    owners = _owners(computation)
    last: dict[int, int] = {}
    for position, op in enumerate(computation.instructions):
        named = _is_name(op)
        for number in op.operands:
            for owner in () if named and op.opcode != "while" else owners.get(number, {number}):
                last[owner] = position
    results = owners.get(computation.root, set())
    for op in computation.instructions:
        if owners[op.id] != {op.id} or op.id in results:
            continue
        yield Held(op, op.nbytes, positions[op.id], last.get(op.id, positions[op.id]))
    for op in computation.instructions:
        if op.opcode in ("while", "conditional", "call"):
            inside = max((_most(program, program.computations[called]) for called in op.called), default=0)
            yield Held(op, inside, positions[op.id], positions[op.id])


def _owners(computation: Computation) -> dict[int, set[int]]:
    """Whose memory each instruction's result is, by its id. An element of a tuple is its own, whatever loops the tuple went through."""
    owners: dict[int, set[int]] = {}
    parts: dict[int, list[set[int]]] = {}
    for op in computation.instructions:
        given = [owners.get(number, {number}) for number in op.operands]
        owners[op.id] = set().union(*given) if _is_name(op) else {op.id}
        if op.opcode == "tuple":
            parts[op.id] = given
        elif op.opcode in ("while", "opt-barrier") and op.operands[0] in parts:
            parts[op.id] = parts[op.operands[0]]
        elif op.opcode == "get-tuple-element" and op.operands[0] in parts:
            owners[op.id] = parts[op.operands[0]][op.message.number(_TUPLE_INDEX)]
    return owners


def _is_name(op: Instruction) -> bool:
    return op.opcode in _NAMES or op.opcode.endswith("-done") or op.opcode == "while"


def _most(program: Program, computation: Computation) -> int:
    """The most temporaries at once in the body of a loop."""
    return max(_along(_held(program, computation), len(computation.instructions)), default=0)
