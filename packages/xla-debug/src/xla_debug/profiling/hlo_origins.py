"""Find the torch operator, module and line that an HLO instruction comes from, by the metadata that lowering gave it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from xla_debug.profiling.wire_format import Message

# Fields of HloProto, HloModuleProto, HloComputationProto, HloInstructionProto and OpMetadata.
_MODULE = 1
_COMPUTATIONS = 3
_INSTRUCTIONS, _COMPUTATION_ID, _ROOT_ID = 2, 5, 6
_NAME, _OPCODE, _METADATA, _ID, _CALLED = 1, 2, 7, 35, 38
_OP_NAME = 2

# `aten.mm[train.py:17]`, a part of an operation's name between slashes; in brackets the line, and the lines that called it.
_OPERATOR = re.compile(r"(?P<name>\w+\.[\w.:-]+)\[(?P<lines>[^\]]*)\]")
# Parts that JAX adds to the name: `jit(train_step)`, bodies of its loops.
_WRAPPER = re.compile(r"\w+\(.*\)|while|body|cond|closed_call|branch_\d+_fun|shmap_body|checkpoint")
# The opcodes that take most of a fusion's time, the costliest first; without them, its root does.
_COSTLY = ("convolution", "dot", "custom-call", "sort", "scatter", "reduce-window", "reduce", "gather")


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a kernel.

    operator: as recorded, `aten.mm`; the opcode if no operator made the instruction. module: path of the scopes it was recorded in,
    `encoder.0`. line: the user's, `train.py:17`. fused: the other operators in the same kernel.
    """

    operator: str
    module: str = ""
    line: str | None = None
    fused: tuple[str, ...] = ()


def origin_of(op_name: str) -> Origin | None:
    """Parse the origin from an operation's name; None if no operator of ours made it."""
    parts = op_name.split("/")
    for position in range(len(parts) - 1, -1, -1):  # from the innermost part on, since bodies of loops are nested
        match = _OPERATOR.fullmatch(parts[position])
        if match is not None:
            scopes = [part for part in parts[:position] if not _WRAPPER.fullmatch(part) and not _OPERATOR.fullmatch(part)]
            line = match["lines"].partition("<")[0]
            return Origin(match["name"], ".".join(scopes), None if line == "unknown" else line)
    return None


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str
    opcode: str
    op_name: str
    number: int
    called: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Computation:
    root: int
    instructions: tuple[_Instruction, ...]


def origins(hlo_proto: bytes) -> dict[str, Origin]:
    """Find the origin of each instruction of a program, by its name. Raises ValueError if the program is damaged."""
    computations = {}
    for part in Message(Message(hlo_proto).part(_MODULE)).parts(_COMPUTATIONS):
        message = Message(part)
        instructions = tuple(_instruction(Message(op)) for op in message.parts(_INSTRUCTIONS))
        computations[message.number(_COMPUTATION_ID)] = _Computation(message.number(_ROOT_ID), instructions)
    return {op.name: _origin(op, computations) for computation in computations.values() for op in computation.instructions}


def _instruction(message: Message) -> _Instruction:
    op_name = Message(message.part(_METADATA)).text(_OP_NAME)
    return _Instruction(message.text(_NAME), message.text(_OPCODE), op_name, message.number(_ID), tuple(message.numbers(_CALLED)))


def _origin(instruction: _Instruction, computations: Mapping[int, _Computation]) -> Origin:
    own = origin_of(instruction.op_name)
    if instruction.opcode not in ("fusion", "call"):  # a reduction's body takes no time of its own
        return own or Origin(instruction.opcode)
    inside = [(inner, origin) for inner in _inside(instruction, computations) if (origin := origin_of(inner.op_name)) is not None]
    if not inside:
        return own or Origin(instruction.opcode)
    costly = [origin for opcode in _COSTLY for inner, origin in inside if inner.opcode == opcode]
    chosen = costly[0] if costly else own or inside[-1][1]
    others = dict.fromkeys(origin.operator for _, origin in inside if origin != chosen)
    others.pop(chosen.operator, None)
    return replace(chosen, fused=tuple(others))


def _inside(instruction: _Instruction, computations: Mapping[int, _Computation]) -> Iterator[_Instruction]:
    """Yield the instructions inside a fusion or a call, the root last."""
    for computation_id in instruction.called:
        computation = computations.get(computation_id, _NOTHING)
        for inner in sorted(computation.instructions, key=lambda inner: inner.number == computation.root):
            if inner.opcode in ("fusion", "call"):
                yield from _inside(inner, computations)
            yield inner


_NOTHING = _Computation(0, ())
