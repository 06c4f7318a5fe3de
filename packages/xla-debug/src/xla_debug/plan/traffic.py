"""Collectives of a program: which devices exchange how many bytes, along which axis of a mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xla_debug.plan.hlo import Instruction, Program
from xla_debug.profiling.wire_format import Message


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective. size: how many devices exchange; first: one group of them; nbytes: what each contributes or gets, the larger."""

    kind: str
    size: int
    first: tuple[int, ...]
    nbytes: int

    @property
    def sent(self) -> float:
        """Bytes that each device sends in a ring; an all-reduce is a reduce-scatter and an all-gather."""
        share = (self.size - 1) / self.size if self.size else 0.0
        factor = {"all-reduce": 2 * share, "collective-permute": 1.0, "collective-broadcast": 1.0}
        return factor.get(self.kind, share) * self.nbytes


def collective(program: Program, op: Instruction, inner: Instruction, devices: int) -> Collective:
    """The collective `inner` that begins at an instruction. devices: that run the program, a group of all where it names none."""
    kind = inner.opcode.removesuffix("-start")
    taken = sum(array.nbytes for number in inner.operands for array in program.by_id[number].arrays)
    given = sum(array.nbytes for array in inner.made)
    if kind == "all-reduce" and inner is not op and sum(array.nbytes for array in op.made) < given:
        kind = "reduce-scatter"  # XLA:TPU has it as a fusion of a sum and of the slice that a device keeps
    if kind == "collective-permute":
        return Collective(kind, 2, _pair(inner.message.parts(52)), taken)
    groups = _groups(inner.message)
    first = tuple(groups[0]) if groups else tuple(range(devices))
    return Collective(kind, len(first), first, max(taken, given))


def _pair(pairs: Sequence[bytes]) -> tuple[int, ...]:
    moving = [(Message(part).number(1), Message(part).number(2)) for part in pairs]
    return next((pair for pair in moving if pair[0] != pair[1]), (0, 0))


def _groups(message: Message) -> list[list[int]]:
    """Groups of devices, written out or as an iota over a shape."""
    listed = Message(message.part(87))
    written = [Message(part).numbers(1) for part in (message.parts(49) or listed.parts(1))]
    if written:
        return written
    iota = Message(listed.part(2))
    shape = iota.numbers(3)
    if not shape:
        return []
    numbers = np.arange(math.prod(shape)).reshape(shape).transpose(iota.numbers(4) or range(len(shape)))
    return [list(map(int, row)) for row in numbers.reshape(iota.number(1), iota.number(2))]


def axis_of(group: Sequence[int], mesh: Mapping[str, int]) -> str:
    """The axes of a mesh, in row-major order over the devices, along which a group extends: `fsdp`, `data × tensor`; "" for no mesh."""
    if not mesh or max(group, default=0) >= math.prod(mesh.values()):
        return ""
    places = np.array(np.unravel_index(list(group), tuple(mesh.values())))
    names = [name for name, row in zip(mesh, places, strict=True) if len(set(row.tolist())) > 1]
    return " × ".join(names)
