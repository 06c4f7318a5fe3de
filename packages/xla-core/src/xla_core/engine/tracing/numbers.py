"""Python numbers that are traced through a step: numbers derived from a learning rate are computed anew at each captured call."""

from __future__ import annotations

import functools
import math
import operator
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Symbol:
    """A number that may change from call to call. name: for messages; key: distinguishes it from other symbols."""

    name: str
    key: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """A function of Python's, such as those of `operator` and `math`, over other expressions."""

    function: Function
    operands: tuple[Expression, ...]


Expression = Symbol | Applied | float | str
"""A traced number; floats, other numbers and texts are constants."""


class Formulas:
    """Lists of expressions, evaluated again and again as Python would; common subexpressions are evaluated once.

    symbols: `evaluate` takes their values, in this order.
    """

    def __init__(self, symbols: Iterable[Symbol], *lists: Sequence[Expression]) -> None:
        parts = [part for expressions in lists for expression in expressions for part in _parts(expression)]
        applied = list(dict.fromkeys(part for part in parts if isinstance(part, Applied)))
        self._constants = list({_key(part): part for part in parts if not isinstance(part, (Symbol, Applied))}.values())
        ordered: list[Expression] = [*symbols, *self._constants, *applied]
        indices = {_key(part): index for index, part in enumerate(ordered)}
        self._steps = [(part.function, picker([indices[_key(operand)] for operand in part.operands])) for part in applied]
        self._lists = [picker([indices[_key(expression)] for expression in expressions]) for expressions in lists]

    def evaluate(self, values: list[Any]) -> list[list[Any]] | None:
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
    return expression if isinstance(expression, (Symbol, Applied)) else (type(expression), repr(expression))


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

    As a float it is a little off (see `Tracer`); true: its real value, a float of Python or NumPy.
    """

    __slots__ = ("expression", "tracer", "true")

    true: Any
    expression: Expression
    tracer: Tracer

    def __hash__(self) -> int:
        return int(self.tracer.fixed(hash, self))  # a dict that has no such key does not compare

    def __bool__(self) -> bool:
        return self.tracer.compare(operator.ne, self, 0.0)

    def __float__(self) -> float:
        return float(self.tracer.fixed(float, self))

    def __complex__(self) -> complex:
        return complex(self.tracer.fix(self))

    def __copy__(self) -> Number:
        return self

    def __deepcopy__(self, memo: Any) -> Number:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self.true), (self.tracer.fix(self),)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __getattr__(self, name: str) -> Any:
        """What NumPy's numbers have besides Python's: that of the real value, which then stays the same in all calls of a program."""
        if name.startswith("__") or name in Number.__slots__ or not hasattr(type(self.true), name):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return (lambda: self) if name == "item" else getattr(self.tracer.fix(self), name)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "__call__" and not options and all(isinstance(item, _NUMBERS) for item in inputs):
            return self.tracer.apply(ufunc, inputs)
        inputs = tuple([self.tracer.fix(item) if isinstance(item, Number) else item for item in inputs])
        return getattr(ufunc, method)(*inputs, **options)


class Integer(Number):
    """A Number whose real value is an integer, and that `isinstance` takes for one.

    Its type is not derived from `int`, because a float times an `int` would not ask it for the product.
    """

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __invert__(self) -> Any:
        return self.tracer.apply(operator.invert, (self,))

    @property
    def numerator(self) -> Number:
        """The number."""
        return self

    @property
    def denominator(self) -> int:
        """1."""
        return 1

    def __index__(self) -> int:
        return int(self.tracer.fixed(operator.index, self))


_NUMBERS = (int, float, np.floating, np.integer)


def _computing(function: Function, swapped: bool = False) -> Any:
    def method(self: Number, *others: Any) -> Any:
        if not all(isinstance(other, _NUMBERS) for other in others):
            return NotImplemented
        return self.tracer.apply(function, (*others, self) if swapped else (self, *others))

    return method


def _comparing(function: Function) -> Any:
    def method(self: Number, other: Any) -> Any:
        return self.tracer.compare(function, self, other) if isinstance(other, _NUMBERS) else NotImplemented

    return method


def _fixing(function: Function) -> Any:
    def method(self: Number, *args: Any) -> Any:
        return self.tracer.fixed(function, self, *args)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Number, f"__{_name}__", _computing(getattr(operator, _name)))
    setattr(Number, f"__r{_name}__", _computing(getattr(operator, _name), swapped=True))
for _name in ("and", "or", "xor", "lshift", "rshift"):
    setattr(Integer, f"__{_name}__", _computing(getattr(operator, f"__{_name}__")))
    setattr(Integer, f"__r{_name}__", _computing(getattr(operator, f"__{_name}__"), swapped=True))
for _name in ("neg", "pos", "abs"):
    setattr(Number, f"__{_name}__", _computing(getattr(operator, _name)))
_ROUNDING: dict[str, Function] = {"round": round, "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil}
for _name, _function in _ROUNDING.items():
    setattr(Number, f"__{_name}__", _computing(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Number, f"__{_name}__", _comparing(getattr(operator, _name)))
_FIXED: dict[str, Function] = {
    "__int__": int,
    "__format__": format,
    "__str__": str,
    "__repr__": repr,
    "is_integer": lambda number: float(number).is_integer(),
    "as_integer_ratio": lambda number: number.as_integer_ratio(),
    "hex": lambda number: float(number).hex(),
}
for _name in ("bit_count", "bit_length", "to_bytes"):
    setattr(Integer, _name, _fixing(getattr(int, _name)))
for _name, _function in _FIXED.items():
    setattr(Number, _name, _fixing(_function))

# Small enough to change no number in f32, save where it is rounded; large enough to be left over where 1 is added.
_NOISE = 2.0**-30
_AT_ZERO = 1e-30
_TINY = 1e-290  # below that, such noise is lost
_LARGEST = 1 << 53  # a larger integer is no float


class Tracer:
    """Makes the numbers of one recorded call, and finds them again among the numbers of its program.

    C++ takes the plain float out of a Number. So that it can be told from any other, it is made a little wrong at random; before a
    program runs, the true values are put back. What was computed in a way that cannot be followed (`math.sqrt`) is still a little wrong:
    it differs between two recorded calls, and so is noticed.
    exact: make none wrong, for calls that are compared with a program whose formulas are known.
    """

    def __init__(self, exact: bool = False) -> None:
        self._exact = exact
        self._random = random.Random()
        self._known: dict[float, Number] = {}
        self._made: dict[Expression, Number] = {}
        self.comparisons: list[Comparison] = []

    def symbol(self, symbol: Symbol, true: Any) -> Number:
        """A traced number for a symbol that is now `true`."""
        return self._make(true, symbol)

    def _make(self, true: Any, expression: Expression) -> Number:
        number = self._made.get(expression)
        if number is None:
            number = (Integer if isinstance(true, (int, np.integer)) else Number)(self._off(float(true)))
            number.true, number.expression, number.tracer = true, expression, self
            self._made[expression] = self._known[_plain(number)] = number
        return number

    def _off(self, true: float) -> float:
        """A number near `true` that equals no other number of the call."""
        while not self._exact:
            off = self._random.uniform(0.5, 1.0)
            value = true * (1.0 + off * _NOISE) if abs(true) > _TINY else off * _AT_ZERO
            if math.isinf(value):
                value = true * (1.0 - off * _NOISE)
            if value not in self._known:
                return value
        return true

    def apply(self, function: Function, operands: tuple[Any, ...]) -> Any:
        """`function` over numbers, some of them Numbers."""
        true = function(*map(_true, operands))
        if isinstance(true, (bool, np.bool_)):
            return self.compare(function, *operands)
        if isinstance(true, _NUMBERS) and -_LARGEST < true < _LARGEST:
            return self._make(true, Applied(function, tuple(map(_expression, operands))))
        for operand in operands:
            if isinstance(operand, Number):
                self.fix(operand)
        return true

    def fix(self, number: Number) -> Any:
        """The true value, for computations that cannot be traced; a call where it differs is recorded anew."""
        self.compare(operator.eq, number, number.true)
        return number.true

    def fixed(self, function: Function, *operands: Any) -> Any:
        """What `function` gives for the true values; a call where that differs is recorded anew."""
        value = function(*map(_true, operands))
        applied = Applied(function, tuple(map(_expression, operands)))
        self.comparisons.append(Comparison(Applied(operator.eq, (applied, value)), True))
        return value

    def compare(self, function: Function, *operands: Any) -> bool:
        """Compare the true numbers, and note the outcome."""
        outcome = bool(function(*map(_true, operands)))
        self.comparisons.append(Comparison(Applied(function, tuple(map(_expression, operands))), outcome))
        return outcome

    def found(self, value: float) -> Number | None:
        """The Number whose plain float is `value`; None if there is none."""
        return None if self._exact else self._known.get(value)


_OF_MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees erf erfc exp exp2 expm1 fabs factorial floor fmod "
    "gamma "
    "gcd hypot isclose isfinite isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2 nextafter perm pow radians remainder sin sinh sqrt "
    "tan tanh trunc ulp"
).split()


def _traced(function: Function) -> Function:
    @functools.wraps(function)
    def traced(*operands: Any, **options: Any) -> Any:
        number = next((operand for operand in (*operands, *options.values()) if isinstance(operand, Number)), None)
        if number is None:
            return function(*operands, **options)
        constants = {name: number.tracer.fix(value) if isinstance(value, Number) else value for name, value in options.items()}
        return number.tracer.apply(functools.partial(function, **constants) if constants else function, operands)

    return traced


TRACED: dict[Function, Function] = {getattr(math, name): _traced(getattr(math, name)) for name in _OF_MATH}
"""The functions of `math`, with others that trace Numbers."""
_tracing = 0
_lock = threading.Lock()


@contextmanager
def traced_math() -> Iterator[None]:
    """Let the functions of `math` trace Numbers."""
    _trace_math(1)
    try:
        yield
    finally:
        _trace_math(-1)


def _trace_math(change: int) -> None:
    global _tracing
    with _lock:
        before, _tracing = _tracing, _tracing + change
        if bool(before) is not bool(_tracing):
            for function, traced in TRACED.items():
                setattr(math, function.__name__, traced if _tracing else function)


log = TRACED[math.log]
"""`math.log`; traced if its argument is."""


def _true(operand: Any) -> Any:
    return operand.true if isinstance(operand, Number) else operand


def _plain(operand: Any) -> Any:
    return float.__add__(operand, 0.0) if isinstance(operand, Number) else operand


def _expression(operand: Any) -> Expression:
    if isinstance(operand, Number):
        return operand.expression
    # Expressions with 0.0 and -0.0 would be equal.
    return Applied(operator.neg, (0.0,)) if isinstance(operand, float) and operand == 0 and math.copysign(1.0, operand) < 0 else operand
