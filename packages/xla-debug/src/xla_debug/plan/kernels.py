"""What a Pallas kernel for TPUs computes, read from its own code: products, vector operations, steps of its grid.

The compiler says nothing of such a kernel. Its module has it all: the grid, the matrix products with their shapes, and which of them run
in which step, as far as that follows from the indices of the grid and from constants (a causal mask leaves out blocks of keys).
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xla_debug import _compat
from xla_debug.plan.hardware import KERNEL_SHARE, KERNEL_STEP_CYCLES, SPECIAL_RESULTS, VECTOR_LANES, VECTOR_RESULTS, Speed

_MOST_TURNS = 4096
_SPECIAL = {
    f"math.{name}" for name in ("exp", "exp2", "expm1", "log", "log1p", "log2", "tanh", "rsqrt", "sqrt", "sin", "cos", "powf", "erf")
}
_SPECIAL |= {"arith.divf", "tpu.reciprocal"}
_SCALAR: Mapping[str, Callable[..., Any]] = {
    "arith.addi": np.add,
    "arith.subi": np.subtract,
    "arith.muli": np.multiply,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.divsi": lambda left, right: np.trunc(left / np.where(right == 0, 1, right)).astype(np.int64),
    "arith.remsi": lambda left, right: np.fmod(left, np.where(right == 0, 1, right)),
    "arith.select": np.where,
}
_SAME = {f"arith.{name}" for name in ("index_cast", "index_castui", "extsi", "extui", "trunci")}
_COMPARED: dict[int, Callable[..., Any]] = {
    0: np.equal,
    1: np.not_equal,
    2: np.less,
    3: np.less_equal,
    4: np.greater,
    5: np.greater_equal,
}
_COMPARED |= {unsigned: _COMPARED[unsigned - 4] for unsigned in (6, 7, 8, 9)}


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of one shape. times: how many; rows × inner times inner × columns; bits: of an element of the left one."""

    times: float
    rows: int
    inner: int
    columns: int
    bits: int

    @property
    def flops(self) -> float:
        """Operations of all of them."""
        return 2.0 * self.times * self.rows * self.inner * self.columns

    def padded(self, unit: int) -> float:
        """Operations of matrix units of unit × unit cells, with the idle cells of those that it does not fill, for operands in 16 bits.

        Operands in 32 bits go through a unit at half the speed.
        """
        inner, columns = (-(-size // unit) * unit for size in (self.inner, self.columns))
        return 2.0 * self.times * self.rows * inner * columns * max(1.0, self.bits / 16)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel computes in one call. vector: results of vector operations, special: of exponentials and the like, in 32 bits each.

    steps: of its grid. exact: False where not all of its control flow is known; then all is counted that may run.
    """

    products: tuple[Product, ...] = ()
    vector: float = 0.0
    special: float = 0.0
    steps: int = 1
    exact: bool = True

    @property
    def flops(self) -> float:
        """Operations of its products."""
        return sum(product.flops for product in self.products)


def kernel_seconds(work: KernelWork, speed: Speed) -> float:
    """How long a kernel takes on a TPU: as the unit that has most to do, matrix or vector, and some cycles for each step of the grid."""
    lanes = VECTOR_LANES * speed.cores * speed.clock
    units = (
        sum(product.padded(speed.unit) for product in work.products) / speed.flops_bf16,
        work.vector / (lanes * VECTOR_RESULTS),
        work.special / (lanes * SPECIAL_RESULTS),
    )
    return max(units) / KERNEL_SHARE + work.steps * KERNEL_STEP_CYCLES / speed.clock


def kernel_work(body: str, operands: Sequence[np.ndarray | None]) -> KernelWork | None:
    """The work of a kernel by the base64 of its module, as a custom call has it. operands: values of those that are constants.

    None for a module that cannot be read.
    """
    try:
        with _compat.mosaic_module(base64.b64decode(body, validate=True)) as module:
            functions = list(module.body.operations)
            # The others say which blocks a step takes.
            function = next((op for op in functions if "iteration_bounds" in op.attributes), functions[0])
            return _Reader(function, operands).work()
    except (binascii.Error, ValueError, IndexError, KeyError, _compat.MosaicError):
        return None


@dataclass(slots=True)
class _Reader:
    """Goes through a kernel's function once, for all steps of its grid together: a scalar is an array over the grid, or None if unknown."""

    function: Any
    operands: Sequence[np.ndarray | None]
    values: dict[Any, Any] = field(default_factory=dict)
    constants: dict[Any, np.ndarray] = field(default_factory=dict)
    sums: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    vector: float = 0.0
    special: float = 0.0
    steps: int = 1
    exact: bool = True

    def work(self) -> KernelWork:
        """What all steps compute."""
        attributes = self.function.attributes
        grid = _integers(attributes["iteration_bounds"]) if "iteration_bounds" in attributes else []
        self.steps = math.prod(grid)
        block = self.function.regions[0].blocks[0]
        arguments = list(block.arguments)
        for axis, size in enumerate(grid):
            self.values[arguments[axis]] = np.arange(size).reshape([size if each == axis else 1 for each in range(len(grid))])
        for argument, constant in zip(arguments[len(grid) :], self.operands, strict=False):
            if constant is not None:
                self.constants[argument] = constant
        self._block(block, np.ones([1] * len(grid)))
        products = tuple(Product(times, *shape) for shape, times in self.sums.items() if times)
        return KernelWork(products, self.vector, self.special, self.steps, self.exact)

    def _runs(self, times: np.ndarray) -> float:
        return float(times.mean()) * self.steps

    def _block(self, block: Any, times: np.ndarray) -> list[Any]:
        """Go through a block that each step runs so often; returns what it yields."""
        for op in block.operations:
            name = op.operation.name.removeprefix("stable_mosaic.")
            if name in ("scf.yield", "func.return"):
                return [self.values.get(value) for value in op.operands]
            if name == "scf.if":
                self._branches(op, times)
            elif name == "scf.for":
                self._loop(op, times)
            elif len(op.regions):
                self.exact = self.exact and name != "scf.while"
                for region in op.regions:
                    for inner in region.blocks:
                        self._block(inner, times)
            elif not self._scalar(op, name):
                self._vector(op, name, times)
        return []

    def _branches(self, op: Any, times: np.ndarray) -> None:
        chosen = self.values.get(op.operands[0])
        if chosen is None:
            self.exact = False
            chances = (times, times)
        else:
            chances = (times * (chosen != 0), times * (chosen == 0))
        yielded = [self._block(block, chance) for region, chance in zip(op.regions, chances, strict=False) for block in region.blocks]
        for index, result in enumerate(op.results):
            both = [branch[index] for branch in yielded]
            known = chosen is not None and len(both) == 2 and all(value is not None for value in both)
            self.values[result] = np.where(chosen != 0, *both) if known else None

    def _loop(self, op: Any, times: np.ndarray) -> None:
        begin, end, step = (self.values.get(value) for value in list(op.operands)[:3])
        block = op.regions[0].blocks[0]
        index, *carried = block.arguments
        state = [self.values.get(value) for value in list(op.operands)[3:]]
        if begin is None or end is None or step is None:
            self._unknown_turns(block, times)
            state = [None for _ in state]
        elif (turns := np.maximum(0, -(-(end - begin) // np.maximum(step, 1)))).max() > _MOST_TURNS:
            self._unknown_turns(block, times * turns)
            state = [None for _ in state]
        else:
            for turn in range(int(turns.max())):
                self.values.update({index: begin + turn * step, **dict(zip(carried, state, strict=True))})
                state = self._block(block, times * (turn < turns))
        self.values.update(zip(op.results, state, strict=True))

    def _unknown_turns(self, block: Any, times: np.ndarray) -> None:
        """Go through the block of a loop once, for all of its turns."""
        self.exact = False
        self.values.update(dict.fromkeys(block.arguments))
        self._block(block, times)

    def _scalar(self, op: Any, name: str) -> bool:
        """Compute a scalar; False for an operation over vectors."""
        if not len(op.results) or _shape(op.results[0].type) is not None:
            return False
        inputs = [self.values.get(value) for value in op.operands]
        result = None
        if name == "arith.constant":
            result = _integer(op.attributes["value"])
        elif name == "memref.load":
            array, places = self.constants.get(op.operands[0]), [place for place in inputs[1:] if place is not None]
            if array is not None and len(places) == array.ndim:
                result = array[tuple(np.clip(place, 0, size - 1) for place, size in zip(places, array.shape, strict=True))].astype(np.int64)
        elif all(value is not None for value in inputs):
            if name in _SAME:
                result = inputs[0]
            elif name == "arith.cmpi":
                result = _COMPARED[_integer(op.attributes["predicate"])](*inputs).astype(np.int64)
            elif name in _SCALAR:
                result = _SCALAR[name](*inputs)
        self.values[op.results[0]] = result
        return True

    def _vector(self, op: Any, name: str, times: np.ndarray) -> None:
        if name in ("tpu.matmul", "vector.contract"):
            left, right, out = (_shape(value.type) for value in (op.operands[0], op.operands[1], op.results[0]))
            if left is None or right is None or out is None:
                raise ValueError("a product is of arrays")
            inner = _contracted(op, left[0])
            rows = math.prod(left[0]) // inner
            columns = math.prod(out[0]) // rows
            key = (rows, inner, columns, left[1])
            self.sums[key] = self.sums.get(key, 0.0) + self._runs(times)
            return
        if not len(op.results) or not (name.startswith(("arith.", "math.")) or name in _SPECIAL or name == "vector.multi_reduction"):
            return
        shape = _shape((op.operands[0] if name == "vector.multi_reduction" else op.results[0]).type)
        if shape is None or name == "arith.constant":
            return
        widest = max([bits for _, bits in filter(None, (_shape(value.type) for value in (*op.operands, *op.results)))], default=32)
        if widest > 1:  # masks have registers of their own
            computed = self._runs(times) * math.prod(shape[0]) * widest / 32
            self.vector += computed
            self.special += computed if name in _SPECIAL else 0.0


def _shape(kind: Any) -> tuple[tuple[int, ...], int] | None:
    """Sizes and bits of an element of a vector; None for other types."""
    text = str(kind)
    match = re.fullmatch(r"vector<((?:\d+x)+)([a-z]+)(\d+)\w*>", text)
    if match is None:
        return None
    return tuple(int(size) for size in match[1].rstrip("x").split("x")), int(match[3])


def _contracted(op: Any, left: tuple[int, ...]) -> int:
    """The number of terms of each sum of a product."""
    numbers = re.search(r"<\[([\d, ]*)\]", str(op.attributes["dimension_numbers"])) if "dimension_numbers" in op.attributes else None
    if numbers is None:
        return left[-1]
    return math.prod(left[int(axis)] for axis in numbers[1].split(","))


def _integer(attribute: Any) -> Any:
    """The number of an attribute as an array; None for others."""
    match = re.fullmatch(r"(-?\d+|true|false)(?: : \w+)?", str(attribute))
    if match is None:
        return None
    return np.int64({"true": 1, "false": 0}[match[1]] if match[1] in ("true", "false") else int(match[1]))


def _integers(attribute: Any) -> list[int]:
    """The numbers of an attribute such as `array<i64: 2, 4>`."""
    return [int(number) for number in re.findall(r"-?\d+", str(attribute).partition(":")[2])]
