"""Where in a program collectives begin and end: at once, in the background, or step by step beside products, as XLA:TPU fuses them.

Source of the fields: `xla/service/hlo.proto` of openxla/xla.
"""

from __future__ import annotations

from dataclasses import dataclass

from xla_debug.plan.hlo import Instruction, Program

_CHANNEL = 26
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective at an instruction. key: the same where it begins and where it ends; one that does both there holds all else up."""

    collective: Instruction
    key: int
    begins: bool
    ends: bool


def exchange_at(program: Program, op: Instruction) -> Exchange | None:
    """What begins or ends at an instruction; None for all else, also for a product beside which a collective goes on."""
    base, _, part = op.opcode.rpartition("-")
    if op.opcode in COLLECTIVES:
        return Exchange(op, op.id, begins=True, ends=True)
    if base in COLLECTIVES and part == "start":
        return Exchange(op, op.id, begins=True, ends=False)
    if part == "done" and (begun := program.by_id.get(next(iter(op.operands), 0))) is not None:
        return _ended(program, begun)
    inner = _inside(program, op)
    if inner is None:
        return None
    if op.opcode == "async-start":
        return Exchange(inner, op.id, begins=True, ends=False)
    targets = {each.target for called in op.called for each in program.computations[called].instructions}
    channel = inner.message.number(_CHANNEL)
    if "AsyncCollectiveStart" in targets:
        return Exchange(inner, -channel, begins=True, ends=False)
    if "AsyncCollectiveDone" in targets:
        return Exchange(inner, -channel, begins=False, ends=True)
    return None if channel in _stepwise(program) else Exchange(inner, op.id, begins=True, ends=True)


def _ended(program: Program, begun: Instruction) -> Exchange | None:
    while begun.opcode == "async-update":
        begun = program.by_id[begun.operands[0]]
    exchange = exchange_at(program, begun)
    return None if exchange is None else Exchange(exchange.collective, exchange.key, begins=False, ends=True)


def _inside(program: Program, op: Instruction) -> Instruction | None:
    """The first collective of which an instruction is a fusion or a wrapper."""
    if op.opcode not in ("fusion", "async-start"):
        return None
    for called in op.called:
        for each in program.computations[called].instructions:
            found = each if each.opcode in COLLECTIVES else _inside(program, each)
            if found is not None:
                return found
    return None


def _stepwise(program: Program) -> frozenset[int]:
    """The channels of collectives that go on step by step beside products."""
    found = program.notes.get("stepwise")
    if found is None:
        starts = [op for op in program.by_id.values() if op.target == "AsyncCollectiveStart"]
        gathers = (program.by_id[op.operands[0]].message.number(_CHANNEL) for op in starts)
        found = program.notes["stepwise"] = frozenset(gathers)
    return found
