"""What a program computes, reads and writes, and how long that takes: by instruction, loops counted as often as they run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from xla_debug.plan.accesses import accessed
from xla_debug.plan.constants import constant_of
from xla_debug.plan.hlo import Array, Computation, Instruction, Program, signed
from xla_debug.plan.kernels import KernelWork, kernel_work
from xla_debug.profiling.wire_format import Message

# Names for what is there already, or is not computed by the device's cores.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier",
    "add-dependency", "domain",
}  # fmt: skip
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "ragged-all-to-all",
    "collective-broadcast",
)
_CALLS = {"call", "while", "conditional", "async-start"}


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that takes time. times: how often it runs. flops, nbytes (in main memory), cycles: of one run.

    kernel: what a Pallas kernel for TPUs computes, of which the compiler tells no cycles; None for all else, and for one that cannot be read.
    """

    instruction: Instruction
    times: int
    flops: float
    nbytes: int
    cycles: int
    kernel: KernelWork | None = None


def collective_in(program: Program, instruction: Instruction) -> Instruction | None:
    """The collective that begins here: the instruction itself, or one that it is a fusion or a wrapper of; None for all else."""
    if instruction.opcode.removesuffix("-start") in _COLLECTIVES:
        return instruction
    if instruction.opcode not in ("fusion", "async-start"):
        return None
    inside = (each for called in instruction.called for each in program.computations[called].instructions)
    return next((inner for each in inside if (inner := collective_in(program, each)) is not None), None)


def begins_in_background(instruction: Instruction) -> bool:
    """Whether other work goes on beside a collective that begins here, until the instruction that ends it."""
    return instruction.opcode.endswith("-start")


def _ends_collective(program: Program, instruction: Instruction) -> bool:
    if not instruction.opcode.endswith("-done"):
        return False
    begun = program.by_id.get(next(iter(instruction.operands), 0))
    return begun is not None and collective_in(program, begun) is not None


def steps(program: Program) -> Iterator[Step]:
    """The instructions that take time, in the order in which they first run."""
    yield from _within(program, program.entry, 1)


def _within(program: Program, computation: Computation, times: int) -> Iterator[Step]:
    for instruction in computation.instructions:
        if instruction.opcode in _FREE or (instruction.opcode.endswith("-done") and not _ends_collective(program, instruction)):
            continue
        if instruction.opcode in _CALLS and collective_in(program, instruction) is None:
            inside = times * (instruction.trips if instruction.opcode == "while" else 1)
            for called in instruction.called:
                yield from _within(program, program.computations[called], inside)
            continue
        kernel = _kernel(program, instruction)
        flops = _flops(program, instruction) if kernel is None else kernel.flops
        yield Step(instruction, times, flops, _traffic(program, instruction), instruction.cycles, kernel)


def _kernel(program: Program, instruction: Instruction) -> KernelWork | None:
    body = instruction.config.get("custom_call_config", {}).get("body") if instruction.opcode == "custom-call" else None
    if not isinstance(body, str):
        return None
    return kernel_work(body, [constant_of(program, number) for number in instruction.operands])


def _traffic(program: Program, instruction: Instruction) -> int:
    """Bytes that an instruction reads from main memory and writes there."""
    if instruction.opcode.endswith("-done"):
        return 0
    if instruction.opcode.endswith("-start") and collective_in(program, instruction) is None:
        return instruction.nbytes  # a copy between memories
    return accessed(program, instruction)


def _flops(program: Program, instruction: Instruction) -> float:
    """Floating-point operations of products and convolutions; those of elementwise operations do not count."""
    if instruction.opcode == "dot":
        return _dot(program, instruction)
    if instruction.opcode == "convolution":
        return _convolution(program, instruction)
    if instruction.opcode == "fusion":
        return sum(_flops(program, inner) for called in instruction.called for inner in program.computations[called].instructions)
    return 0.0


def _dot(program: Program, instruction: Instruction) -> float:
    (left,) = program.by_id[instruction.operands[0]].arrays
    contracted = Message(instruction.message.part(30)).numbers(1)
    return 2.0 * instruction.arrays[0].elements * math.prod(left.dims[axis] for axis in contracted)


def _convolution(program: Program, instruction: Instruction) -> float:
    """Products at positions inside of the input only: padding and the holes of a dilated input are no work of the model's."""
    data: Array = program.by_id[instruction.operands[0]].arrays[0]
    kernel: Array = program.by_id[instruction.operands[1]].arrays[0]
    result = instruction.arrays[0]
    numbers = Message(instruction.message.part(16))
    features = kernel.dims[numbers.number(3)] * result.dims[numbers.number(10)]
    valid = 1
    windows = [Message(part) for part in Message(instruction.message.part(15)).parts(1)]
    axes = zip(numbers.numbers(11), numbers.numbers(12), windows, strict=False)
    for input_axis, output_axis, window in axes:
        valid *= _positions(data.dims[input_axis], result.dims[output_axis], window)
    groups = max(1, instruction.message.number(58))  # of the batch
    return 2.0 * result.dims[numbers.number(9)] / groups * features * valid


def _positions(size: int, out: int, window: Message) -> int:
    """In how many pairs of an output and a kernel position along one axis there is an element of the input."""
    low, base = signed(window.number(3)), max(1, window.number(6))
    kernel = np.arange(window.number(1)) * max(1, window.number(5))
    begins = np.arange(out) * max(1, window.number(2)) - low
    at = begins[:, None] + kernel[None, :]
    return int(((at >= 0) & (at < (size - 1) * base + 1) & (at % base == 0)).sum())
