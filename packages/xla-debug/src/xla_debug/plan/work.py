"""What a program computes, reads and writes, and how long that takes: by instruction, loops counted as often as they run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xla_debug.plan.accesses import accessed
from xla_debug.plan.constants import constant_of
from xla_debug.plan.exchanges import Exchange, exchange_at
from xla_debug.plan.hlo import Computation, Instruction, Program
from xla_debug.plan.kernel_code import kernel_work
from xla_debug.plan.kernels import KernelWork
from xla_debug.plan.loops import trips
from xla_debug.plan.products import is_wide, products

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

    flops: of products and convolutions; those of elementwise operations do not count. wide: of them, those in 64 bits or in all of 32.
    kernel: what a Pallas kernel for TPUs computes, whose cycles the compiler does not tell; None for all else, and if it cannot be read.
    exchange: the collective that begins or ends here.
    """

    instruction: Instruction
    times: int
    flops: float
    nbytes: int
    cycles: int
    wide: float = 0.0
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
        computed = list(products(program, instruction)) if kernel is None else []
        flops = sum(each for _, each in computed) if kernel is None else kernel.flops
        wide = sum(each for product, each in computed if is_wide(program, product))
        yield Step(instruction, times, flops, _traffic(program, instruction, exchange), instruction.cycles, wide, kernel, exchange)


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
