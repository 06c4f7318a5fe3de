"""Read an optimized XLA program: its instructions in the order in which they run, with shapes as the device stores them.

Source of the fields: `xla/service/hlo.proto` and `xla/xla_data.proto` of openxla/xla.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from xla_debug.profiling.wire_format import Message

_BITS = {
    1: 8,
    2: 8,
    3: 16,
    4: 32,
    5: 64,
    6: 8,
    7: 16,
    8: 32,
    9: 64,
    10: 16,
    11: 32,
    12: 64,
    15: 64,
    16: 16,
    18: 128,
    19: 8,
    20: 8,
    21: 4,
    22: 4,
}
_BITS |= {23: 8, 24: 8, 25: 8, 26: 2, 27: 2, 28: 8, 29: 8, 30: 1, 32: 4, 33: 8}
_NAMES = {1: "bool", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32", 12: "f64"}
_NAMES |= {15: "c64", 16: "bf16", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4"}
_TUPLE = 13


@dataclass(frozen=True, slots=True)
class Array:
    """An array as a program has it. minor_to_major: order of its dimensions in memory. tile: its last dimensions are padded to multiples.

    space: 0 for the device's main memory; others are on the chip.
    """

    dtype: str
    bits: int
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
    space: int = 0

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return (self.elements * self.bits + 7) // 8

    @property
    def stored(self) -> int:
        """Bytes in memory, padding included."""
        sizes = [self.dims[axis] for axis in reversed(self.minor_to_major or range(len(self.dims) - 1, -1, -1))]
        for position, multiple in enumerate(reversed(self.tile), 1):
            if position <= len(sizes):
                sizes[-position] = -(-sizes[-position] // multiple) * multiple
            else:
                sizes.insert(0, multiple)
        return (math.prod(sizes) * self.bits + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. arrays: of its result, tuples flattened; called: ids of computations; config: of the backend, if it is JSON."""

    id: int
    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[int, ...]
    called: tuple[int, ...]
    op_name: str
    config: Mapping[str, Any]
    message: Message

    @property
    def nbytes(self) -> int:
        """Bytes of its result in the device's main memory, padding included."""
        return sum(array.stored for array in self.made if not array.space)

    @property
    def made(self) -> tuple[Array, ...]:
        """The arrays that it makes: what begins in the background gives its operands and a context, too."""
        if self.opcode == "copy-start":
            return self.arrays[:1]
        if self.opcode in ("all-gather-start", "collective-permute-start"):
            return self.arrays[len(self.operands) : 2 * len(self.operands)]
        return self.arrays

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return self.message.text(28)

    @property
    def trips(self) -> int:
        """How often the body of a `while` runs; 1 where the compiler does not know."""
        return int(self.config.get("known_trip_count", {}).get("n", 1))

    @property
    def cycles(self) -> int:
        """The compiler's estimate, on TPUs; 0 without one."""
        return int(self.config.get("window_config", {}).get("estimated_cycles", 0))


@dataclass(frozen=True, slots=True)
class Computation:
    """Instructions in the order in which they run."""

    id: int
    name: str
    root: int
    instructions: tuple[Instruction, ...]


class Program:
    """A program. Raises ValueError for bytes that are no `HloModuleProto`."""

    def __init__(self, module: bytes) -> None:
        message = Message(module)
        order = _schedule(Message(message.part(7)))
        computations = [_computation(Message(part), order) for part in message.parts(3)]
        self.computations = {computation.id: computation for computation in computations}
        self.entry = self.computations[message.number(6)]
        self.notes: dict[str, frozenset[int]] = {}  # what readers found once for all

    @cached_property
    def by_id(self) -> dict[int, Instruction]:
        """All instructions."""
        return {op.id: op for computation in self.computations.values() for op in computation.instructions}

    @cached_property
    def within(self) -> dict[int, int]:
        """The id of the computation of each instruction, by its id."""
        return {op.id: computation.id for computation in self.computations.values() for op in computation.instructions}

    @cached_property
    def loops(self) -> dict[int, Instruction]:
        """The `while` that runs a computation as its body or condition, by the computation's id."""
        return {called: op for op in self.by_id.values() if op.opcode == "while" for called in op.called}


def _schedule(message: Message) -> dict[int, list[int]]:
    """The ids of the instructions of each computation, in order."""
    entries = [Message(part) for part in message.parts(1)]
    return {entry.number(1): Message(entry.part(2)).numbers(1) for entry in entries}


def _computation(message: Message, order: Mapping[int, Sequence[int]]) -> Computation:
    instructions = {op.id: op for op in (_instruction(Message(part)) for part in message.parts(2))}
    scheduled = [instructions[number] for number in order.get(message.number(5), ()) if number in instructions]
    return Computation(message.number(5), message.text(1), message.number(6), tuple(scheduled or instructions.values()))


def _instruction(message: Message) -> Instruction:
    return Instruction(
        message.number(35),
        message.text(1),
        message.text(2),
        tuple(_arrays(Message(message.part(3)))),
        tuple(message.numbers(36)),
        tuple(message.numbers(38)),
        Message(message.part(7)).text(2),
        _config(message.part(43)),
        message,
    )


def _config(content: bytes) -> Mapping[str, Any]:
    if not content.startswith(b"{"):
        return {}
    try:
        config = json.loads(content)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _arrays(shape: Message) -> list[Array]:
    kind = shape.number(2)
    if kind == _TUPLE:
        return [array for part in shape.parts(4) for array in _arrays(Message(part))]
    layout = Message(shape.part(5))
    tile = next(iter(layout.parts(6)), b"")
    dims = tuple(shape.numbers(3))
    return [
        Array(
            _NAMES.get(kind, f"type{kind}"),
            _BITS.get(kind, 0),
            dims,
            tuple(layout.numbers(1)),
            tuple(Message(tile).numbers(1)),
            layout.number(8),
        )
    ]


def signed(number: int) -> int:
    """A number of a field of type int64, which messages store as 64 bits without a sign."""
    return number - (1 << 64) if number >> 63 else number
