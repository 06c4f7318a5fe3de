"""Python numbers that are traced through a step: numbers derived from a learning rate are computed anew at each captured call."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A number that may change from call to call. name: for messages; key: distinguishes it from other symbols."""

    name: str
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A function of Python's `operator`, or `math.log`, over other expressions."""

    function: Function
    operands: tuple[Expression, ...]


Expression = Symbol | Applied | float


class Formulas:
    """Lists of expressions, evaluated again and again as Python would; common subexpressions are evaluated once.

    symbols: `evaluate` takes their values, in this order.
    """

    def __init__(self, symbols: Iterable[Symbol], *lists: Sequence[Expression]) -> None:
        parts = [part for expressions in lists for expression in expressions for part in _parts(expression)]
        applied = list(dict.fromkeys(part for part in parts if isinstance(part, Applied)))
        self._constants = list({_key(part): part for part in parts if isinstance(part, (int, float))}.values())
        ordered: list[Expression] = [*symbols, *self._constants, *applied]
        indices = {_key(part): index for index, part in enumerate(ordered)}
        self._steps = [(part.function, picker([indices[_key(operand)] for operand in part.operands])) for part in applied]
        self._lists = [picker([indices[_key(expression)] for expression in expressions]) for expressions in lists]

    def evaluate(self, values: list[float]) -> list[list[Any]] | None:
        """The values of the lists for these values of the symbols. None if Python would raise for an expression, or make it complex."""
        computed: list[Any] = [*values, *self._constants]
        try:
            for function, operands in self._steps:
                computed.append(function(*operands(computed)))
        except (ArithmeticError, TypeError, ValueError):  # division by zero; complex numbers have no order
            return None
        if any(map(isinstance, computed, repeat(complex))):
            return None
        return [list(pick(computed)) for pick in self._lists]


def picker(indices: list[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that gets the items at `indices`, in C if there are several."""
    return itemgetter(*indices) if len(indices) > 1 else lambda items: [items[index] for index in indices]


def _key(expression: Expression) -> Any:
    """Equal for equal expressions; 0.0 and -0.0 are different ones."""
    return (type(expression), repr(expression)) if isinstance(expression, (int, float)) else expression


def _parts(expression: Expression) -> Iterator[Expression]:
    """An expression and all its subexpressions, operands first."""
    if isinstance(expression, Applied):
        for operand in expression.operands:
            yield from _parts(operand)
    yield expression


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of traced numbers in the step's Python, and its outcome: the branches that the step took may depend on it."""

    expression: Applied
    outcome: bool


class Number(float):
    """A float that knows how it was computed.

    As a float it is a little off (see `Tracer`); true: its real value.
    """

    __slots__ = ("expression", "tracer", "true")

    true: float
    expression: Expression
    tracer: Tracer

    def __hash__(self) -> int:
        return hash(self.true)

    def __bool__(self) -> bool:
        return self.tracer.compare(operator.ne, self, 0.0)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self


def _computing(function: Function, swapped: bool = False) -> Any:
    def method(self: Number, *others: Any) -> Any:
        if not all(isinstance(other, (int, float)) for other in others):
            return NotImplemented
        return self.tracer.apply(function, (*others, self) if swapped else (self, *others))

    return method


def _comparing(function: Function) -> Any:
    def method(self: Number, other: Any) -> Any:
        return self.tracer.compare(function, self, other) if isinstance(other, (int, float)) else NotImplemented

    return method


def _fixing(name: str) -> Any:
    def method(self: Number, *args: Any) -> Any:
        return getattr(self.tracer.fix(self), name)(*args)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Number, f"__{_name}__", _computing(getattr(operator, _name)))
    setattr(Number, f"__r{_name}__", _computing(getattr(operator, _name), swapped=True))
for _name in ("neg", "pos", "abs"):
    setattr(Number, f"__{_name}__", _computing(getattr(operator, _name)))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _comparing(getattr(operator, _name)))
for _name in ("__int__", "__round__", "__trunc__", "__floor__", "__ceil__", "is_integer", "as_integer_ratio", "hex"):
    setattr(Number, _name, _fixing(_name))

# Small enough to change no number in f32, save where it is rounded; large enough to be left over where 1 is added.
_NOISE = 2.0**-30
_AT_ZERO = 1e-30
_TINY = 1e-290  # below that, such noise is lost


class Tracer:
    """Makes the numbers of one recorded call, and finds them again among the numbers of its program.

    C++ takes the plain float out of a Number. So that it can be told from any other, it is made a little wrong at random; before a
    program runs, the true values are put back. What was computed in a way that cannot be followed (`math.sqrt`) is still a little wrong:
    it differs between two recorded calls, and so is noticed.
    """

    def __init__(self) -> None:
        self._random = random.Random()
        self._known: dict[float, Number] = {}
        self._made: dict[Expression, Number] = {}
        self.comparisons: list[Comparison] = []

    def symbol(self, symbol: Symbol, true: float) -> Number:
        """A traced number for a symbol that is now `true`."""
        return self._make(float(true), symbol)

    def _make(self, true: float, expression: Expression) -> Number:
        number = self._made.get(expression)
        if number is None:
            number = Number(self._off(true))
            number.true, number.expression, number.tracer = true, expression, self
            self._made[expression] = self._known[_plain(number)] = number
        return number

    def _off(self, true: float) -> float:
        """A number near `true` that equals no other number of the call."""
        while True:
            off = self._random.uniform(0.5, 1.0)
            value = true * (1.0 + off * _NOISE) if abs(true) > _TINY else off * _AT_ZERO
            if math.isinf(value):
                value = true * (1.0 - off * _NOISE)
            if value not in self._known:
                return value

    def apply(self, function: Function, operands: tuple[Any, ...]) -> Any:
        """`function` over numbers, some of them Numbers."""
        true = function(*map(_true, operands))
        if type(true) is float and math.isfinite(true):
            return self._make(true, Applied(function, tuple(map(_expression, operands))))
        for operand in operands:
            if isinstance(operand, Number):
                self.fix(operand)
        return true

    def fix(self, number: Number) -> float:
        """The true value, for computations that cannot be traced; a call where it differs is recorded anew."""
        self.compare(operator.eq, number, number.true)
        return number.true

    def compare(self, function: Function, *operands: Any) -> bool:
        """Compare the true numbers, and note the outcome."""
        outcome = bool(function(*map(_true, operands)))
        self.comparisons.append(Comparison(Applied(function, tuple(map(_expression, operands))), outcome))
        return outcome

    def found(self, value: float) -> Number | None:
        """The Number whose plain float is `value`; None if there is none."""
        return self._known.get(value)


def log(number: float) -> float:
    """`math.log`; traced if `number` is."""
    result: float = number.tracer.apply(math.log, (number,)) if isinstance(number, Number) else math.log(number)
    return result


def _true(operand: Any) -> Any:
    return operand.true if isinstance(operand, Number) else operand


def _plain(operand: Any) -> Any:
    return float.__add__(operand, 0.0) if isinstance(operand, Number) else operand


def _expression(operand: Any) -> Expression:
    if isinstance(operand, Number):
        return operand.expression
    # Expressions with 0.0 and -0.0 would be equal.
    return Applied(operator.neg, (0.0,)) if operand == 0 and math.copysign(1.0, operand) < 0 else operand
