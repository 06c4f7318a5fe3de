"""The operations of matrix products and convolutions, XLA's own and those of the libraries that it calls on GPUs.

Source of the fields: `xla/service/hlo.proto` and `xla/xla_data.proto` of openxla/xla.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from xla_debug.plan.hlo import Array, Instruction, Program, signed
from xla_debug.profiling.wire_format import Message

_GEMM, _CONV = "__cublas$", "__cudnn$conv"
_HIGHEST = 2  # of PrecisionConfig.Precision


def products(program: Program, instruction: Instruction) -> Iterator[tuple[Instruction, float]]:
    """The products and convolutions that an instruction computes, each with its floating-point operations."""
    if instruction.opcode == "dot":
        yield instruction, _dot(program, instruction, Message(instruction.message.part(30)).numbers(1))
    elif instruction.opcode == "convolution":
        yield instruction, _convolution(instruction, *_operands(program, instruction), instruction.arrays[0])
    elif instruction.opcode == "fusion":
        for called in instruction.called:
            for inner in program.computations[called].instructions:
                yield from products(program, inner)
    elif instruction.opcode == "custom-call" and instruction.target.startswith(_GEMM):
        dimensions = instruction.config.get("gemm_backend_config", {}).get("dot_dimension_numbers", {})
        yield instruction, _dot(program, instruction, [int(axis) for axis in dimensions.get("lhs_contracting_dimensions", ())])
    elif instruction.opcode == "custom-call" and instruction.target.startswith(_CONV):
        yield instruction, _library_convolution(program, instruction)


def is_wide(program: Program, instruction: Instruction) -> bool:
    """Whether a product multiplies 64-bit numbers, or 32-bit ones in full: on accelerators both take several times as long as others."""
    dtypes = {array.dtype for array in _operands(program, instruction)}
    precision = Message(instruction.message.part(51)).numbers(1)
    of_library = instruction.config.get("gemm_backend_config", {}).get("precision_config", {}).get("operand_precision", ())
    return bool(dtypes & {"f64", "c128"}) or bool(dtypes & {"f32", "c64"} and (_HIGHEST in precision or "HIGHEST" in of_library))


def is_product(instruction: Instruction) -> bool:
    """Whether a custom call is a product or a convolution of a library."""
    return instruction.target.startswith((_GEMM, _CONV))


def _operands(program: Program, instruction: Instruction) -> tuple[Array, Array]:
    left, right = (program.by_id[number].arrays[0] for number in instruction.operands[:2])
    return left, right


def _dot(program: Program, instruction: Instruction, contracted: Sequence[int]) -> float:
    left, _ = _operands(program, instruction)
    return 2.0 * instruction.arrays[0].elements * math.prod(left.dims[axis] for axis in contracted)


def _library_convolution(program: Program, instruction: Instruction) -> float:
    """Its window and its dimensions are those of the convolution whose result or gradient it computes."""
    first, second = _operands(program, instruction)
    made = instruction.arrays[0]
    kind = instruction.target.removeprefix(_CONV)
    if kind.startswith("BackwardInput"):
        return _convolution(instruction, made, second, first)
    if kind.startswith("BackwardFilter"):
        return _convolution(instruction, first, made, second)
    return _convolution(instruction, first, second, made)


def _convolution(instruction: Instruction, data: Array, kernel: Array, result: Array) -> float:
    """Products at positions inside of the input only: padding and the holes of a dilated input are no work of the model's."""
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
