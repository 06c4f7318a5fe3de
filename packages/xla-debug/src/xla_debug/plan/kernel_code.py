"""The work of a Pallas kernel for TPUs, read from its own code.

Its module has it all: the grid, the matrix products with their shapes, and which of them run in which step, as far as that follows from the
indices of the grid and from constants (a causal mask leaves out blocks of keys).
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
from xla_debug.plan.kernels import KernelWork, Product

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
# By the numbers of MLIR's predicates, from 6 on of numbers without sign.
_COMPARED: Sequence[Callable[..., Any]] = (
    *(np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal),
    *(np.less, np.less_equal, np.greater, np.greater_equal),
)


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
    values: dict[Any, Any] = field(default_factory=dict)  # of scalars
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
        bounds: list[Any] = [self.values.get(value) for value in op.operands]
        begin, end, step, *state = bounds
        block = op.regions[0].blocks[0]
        index, *carried = block.arguments
        known = all(bound is not None for bound in bounds[:3])
        turns = np.maximum(0, -(-(end - begin) // np.maximum(step, 1))) if known else np.int64(1)
        if known and turns.max() <= _MOST_TURNS:
            for turn in range(int(turns.max())):
                self.values.update({index: begin + turn * step, **dict(zip(carried, state, strict=True))})
                state = self._block(block, times * (turn < turns))
        else:
            self.exact = False
            self.values.update({index: None, **dict.fromkeys(carried)})
            state = [None for _ in self._block(block, times * turns)]
        self.values.update(zip(op.results, state, strict=True))

    def _scalar(self, op: Any, name: str) -> bool:
        """Compute a scalar; False for an operation over vectors."""
        if not len(op.results) or _shape(op.results[0].type) is not None:
            return False
        inputs = [self.values.get(value) for value in op.operands]
        result = None
        if name == "arith.constant":
            result = _integer(op.attributes["value"])
        elif name == "memref.load":
            result = self._loaded(op.operands[0], inputs[1:])
        elif all(value is not None for value in inputs):
            if name in _SAME:
                result = inputs[0]
            elif name == "arith.cmpi":
                result = _COMPARED[_integer(op.attributes["predicate"])](*inputs).astype(np.int64)
            elif name in _SCALAR:
                result = _SCALAR[name](*inputs)
        self.values[op.results[0]] = result
        return True

    def _loaded(self, source: Any, places: Sequence[Any]) -> Any:
        array = self.constants.get(source)
        if array is None or any(place is None for place in places):
            return None
        return array[tuple(np.clip(place, 0, size - 1) for place, size in zip(places, array.shape, strict=True))].astype(np.int64)

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
    return np.int64(match[1] == "true" if match[1] in ("true", "false") else int(match[1]))


def _integers(attribute: Any) -> list[int]:
    """The numbers of an attribute such as `array<i64: 2, 4>`."""
    return [int(number) for number in re.findall(r"-?\d+", str(attribute).partition(":")[2])]
