"""Arithmetic over hyperparameters and step counts, as a table that another process evaluates."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from xla_core.base.errors import CaptureError, StepFileError
from xla_core.engine.tracing.numbers import Applied, Comparison, Expression, Symbol
from xla_core.features.export.steps.step_description import StoredFormulas

_NAMES = "add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge".split()
FUNCTIONS: Mapping[str, Callable[..., Any]] = {**{name: getattr(operator, name) for name in _NAMES}, "log": math.log}
"""Functions by their names in files: those of Python's `operator`, and `math.log`."""
_BY_FUNCTION = {function: name for name, function in FUNCTIONS.items()}
_NUMBER, _CONSTANT = "number", "constant"
_MOST_BITS = 1 << 12
"""Limit for intermediate whole numbers: beyond it, powers and products may take very long."""
_LONGEST = 200
"""Longest formula in a message, in characters."""


def formulas_of(names: Mapping[Symbol, str], inputs: Iterable[Expression], comparisons: Iterable[Comparison]) -> StoredFormulas:
    """Make the table for expressions. names: of the symbols. Raises CaptureError for functions or numbers that files do not have."""
    table: list[Any] = []
    row_of: dict[Any, int] = {}

    def index_of(expression: Expression) -> int:
        if isinstance(expression, Symbol):
            row: tuple[Any, ...] = (_NUMBER, names[expression])
        elif isinstance(expression, Applied):
            name = _BY_FUNCTION.get(expression.function)
            if name is None:
                raise CaptureError(f"a number is computed with {expression.function}, which files of steps do not have")
            row = (name, *map(index_of, expression.operands))
        elif isinstance(expression, (int, float)) and math.isfinite(expression):
            row = (_CONSTANT, expression)
        else:
            raise CaptureError(f"a number is computed from {expression}, which files of steps do not have")
        key = repr(row)  # floats with other bits (-0.0), and whole numbers, have keys of their own
        if key not in row_of:
            row_of[key] = len(table)
            table.append(row)
        return row_of[key]

    rows = tuple([index_of(expression) for expression in inputs])
    conditions = tuple([(index_of(comparison.expression), comparison.outcome) for comparison in comparisons])
    return StoredFormulas(tuple(table), rows, conditions)


def check(formulas: StoredFormulas, numbers: Iterable[str]) -> None:
    """Raise StepFileError for a table that is not valid. numbers: the known names."""
    names = set(numbers)
    for index, row in enumerate(formulas.table):
        name, operands = (row[0], row[1:]) if isinstance(row, list) and row else (None, [])
        if name == _NUMBER:
            right = len(operands) == 1 and isinstance(operands[0], str) and operands[0] in names
        elif name == _CONSTANT:
            right = len(operands) == 1 and type(operands[0]) in (int, float)
        else:
            right = name in FUNCTIONS and all(type(operand) is int and 0 <= operand < index for operand in operands)
        if not right:
            raise StepFileError(f"row {index} of the formulas is {row!r}")
    if any(row >= len(formulas.table) for row in (*formulas.inputs, *[row for row, _ in formulas.conditions])):
        raise StepFileError("the formulas end before a row that a program takes")


def evaluate(formulas: StoredFormulas, numbers: Mapping[str, float]) -> list[float]:
    """Compute the numbers that the program takes. Raises ValueError if the step's Python would have taken another branch with these."""
    values: list[Any] = []
    for index, (name, *operands) in enumerate(formulas.table):
        if name == _NUMBER:
            values.append(numbers[operands[0]])
        elif name == _CONSTANT:
            values.append(operands[0])
        else:
            try:
                values.append(_applied(name, [values[operand] for operand in operands]))
                real = not isinstance(values[-1], complex)
            except (ArithmeticError, TypeError, ValueError):
                real = False
            if not real:
                raise ValueError(
                    f"{_text(formulas, index)} cannot be computed{_are(formulas, index, numbers)}: export the step with such numbers"
                )
    for row, outcome in formulas.conditions:
        if values[row] is not outcome:
            raise ValueError(
                f"the step was exported where {_text(formulas, row)} is {outcome}; it would do something else now"
                f"{_are(formulas, row, numbers)}. Capture and export it with such numbers"
            )
    return [float(values[row]) for row in formulas.inputs]


def _applied(name: str, operands: list[Any]) -> Any:
    """Apply a function. Raises OverflowError for too large whole numbers, before computing them."""
    bit_counts = [abs(operand).bit_length() for operand in operands if type(operand) is int]
    bits = (bit_counts[0] - 1) * abs(operands[1]) if name == "pow" and len(bit_counts) == 2 else sum(bit_counts)
    if bits > _MOST_BITS:
        raise OverflowError(f"{name} of whole numbers of {bits} bits")
    return FUNCTIONS[name](*operands)


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_SIGNS |= {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _text(formulas: StoredFormulas, row: int) -> str:
    """A row as people write it, shortened: each row may contain the row before it twice."""
    texts: list[str] = []
    for name, *operands in formulas.table[: row + 1]:
        if name in (_NUMBER, _CONSTANT):
            text = str(operands[0])
        else:
            parts = [texts[operand] for operand in operands]
            infix = name in _SIGNS and len(parts) == 2
            text = f"({parts[0]} {_SIGNS[name]} {parts[1]})" if infix else f"{name}({', '.join(parts)})"
        texts.append(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
    return texts[row]


def _are(formulas: StoredFormulas, row: int, numbers: Mapping[str, float]) -> str:
    """The named numbers that a row depends on, with their values, for messages."""
    values: dict[str, float] = {}
    waiting: list[int] = [row]
    seen: set[int] = set()
    while waiting:
        row = waiting.pop()
        name, *operands = formulas.table[row]
        if name == _NUMBER:
            values[operands[0]] = numbers[operands[0]]
        elif name != _CONSTANT and row not in seen:
            waiting.extend(operands)
        seen.add(row)
    return "".join(f", {name} is {value}" for name, value in values.items())
