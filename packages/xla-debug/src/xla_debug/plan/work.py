"""What a program computes, reads and writes, and how long that takes: by instruction, loops counted as often as they run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from xla_debug.plan.accesses import accessed
from xla_debug.plan.constants import constant_of
from xla_debug.plan.exchanges import Exchange, exchange_at
from xla_debug.plan.hlo import Array, Computation, Instruction, Program, signed
from xla_debug.plan.kernel_code import kernel_work
from xla_debug.plan.kernels import KernelWork
from xla_debug.plan.loops import trips
from xla_debug.profiling.wire_format import Message

# Names for what is there already, or is not computed by the device's cores.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id", "opt-barrier",
    "add-dependency", "domain",
}  # fmt: skip
# Custom calls of XLA:TPU that are names, too: for memory, for slices that lie side by side, for what the compiler may assume.
_FREE_TARGETS = {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound"}
_CALLS = {"call", "while", "conditional", "async-start"}
_DONE = ("-done", "-update")


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction that takes time. times: how often it runs. flops, nbytes (in main memory), cycles: of one run.

    kernel: what a Pallas kernel for TPUs computes, whose cycles the compiler does not tell; None for all else, and if it cannot be read.
    exchange: the collective that begins or ends here.
    """

    instruction: Instruction
    times: int
    flops: float
    nbytes: int
    cycles: int
    kernel: KernelWork | None = None
    exchange: Exchange | None = None


def steps(program: Program) -> Iterator[Step]:
    """The instructions that take time, in the order in which they first run."""
    yield from _within(program, program.entry, 1)


def _within(program: Program, computation: Computation, times: int) -> Iterator[Step]:
    for instruction in computation.instructions:
        exchange = exchange_at(program, instruction)
        if exchange is None and _is_free(instruction):
            continue
        if exchange is None and instruction.opcode in _CALLS:
            inside = times * (trips(program, instruction) if instruction.opcode == "while" else 1)
            for called in instruction.called:
                yield from _within(program, program.computations[called], inside)
            continue
        kernel = _kernel(program, instruction)
        flops = _flops(program, instruction) if kernel is None else kernel.flops
        yield Step(instruction, times, flops, _traffic(program, instruction, exchange), instruction.cycles, kernel, exchange)


def _is_free(instruction: Instruction) -> bool:
    if instruction.opcode == "custom-call":
        return instruction.target in _FREE_TARGETS
    return instruction.opcode in _FREE or instruction.opcode.endswith(_DONE)


def _kernel(program: Program, instruction: Instruction) -> KernelWork | None:
    body = instruction.config.get("custom_call_config", {}).get("body") if instruction.opcode == "custom-call" else None
    if not isinstance(body, str):
        return None
    return kernel_work(body, [constant_of(program, number) for number in instruction.operands])


def _traffic(program: Program, instruction: Instruction, exchange: Exchange | None) -> int:
    """Bytes that an instruction reads from main memory and writes there."""
    if exchange is not None:
        return accessed(program, exchange.collective) if exchange.begins else 0
    if instruction.opcode.endswith("-start"):
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
