"""What is in a device's memory while a program runs, along its schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from xla_debug.plan.hlo import Computation, Instruction, Program

# Results that are names for others' memory.
_NAMES = {"tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency", "domain", "after-all", "parameter"}


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

    @property
    def peak(self) -> int:
        """The position at which most is held."""
        return max(range(len(self.temporaries)), key=self.temporaries.__getitem__, default=0)


def memory(program: Program) -> Memory:
    """The temporaries of a program along its schedule, as if no two buffers shared memory. Results of the program are not among them."""
    held = [*_held(program, program.entry)]
    total = [0] * (len(program.entry.instructions) + 1)
    for buffer in held:
        for position in range(buffer.begin, buffer.end + 1):
            total[position] += buffer.nbytes
    peak = max(range(len(total)), key=total.__getitem__)
    at_peak = sorted((buffer for buffer in held if buffer.begin <= peak <= buffer.end), key=lambda buffer: -buffer.nbytes)
    return Memory(tuple(total), tuple(at_peak))


def _held(program: Program, computation: Computation) -> Iterable[Held]:
    positions = {op.id: position for position, op in enumerate(computation.instructions)}
    # Whose memory a name stands for.
    owners: dict[int, set[int]] = {}
    last: dict[int, int] = {}
    for position, op in enumerate(computation.instructions):
        used = set().union(*(owners.get(number, {number}) for number in op.operands)) if op.operands else set()
        for owner in used:
            last[owner] = position
        named = op.opcode in _NAMES or op.opcode.endswith("-done") or op.opcode == "while"
        owners[op.id] = used if named else {op.id}
    results = owners.get(computation.root, set())
    for op in computation.instructions:
        if owners[op.id] != {op.id} or op.id in results:
            continue
        yield Held(op, op.nbytes, positions[op.id], last.get(op.id, positions[op.id]))
    for op in computation.instructions:
        if op.opcode in ("while", "conditional", "call"):
            inside = max((_most(program, program.computations[called]) for called in op.called), default=0)
            yield Held(op, inside, positions[op.id], positions[op.id])


def _most(program: Program, computation: Computation) -> int:
    """The most temporaries at once in the body of a loop."""
    total = [0] * (len(computation.instructions) + 1)
    for buffer in _held(program, computation):
        for position in range(buffer.begin, buffer.end + 1):
            total[position] += buffer.nbytes
    return max(total)
