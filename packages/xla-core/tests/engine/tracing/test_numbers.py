"""Numbers that are followed: worked out anew, they are what Python computes, and none is taken for another."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import torch_xla
from xla_core.engine.tracing.numbers import Formulas, Number, Symbol, Tracer, log

SYMBOLS = [Symbol(name, (name,)) for name in ("lr", "beta", "decay")]


def power(a: Any, b: Any) -> Any:
    """`a ** b`, but not of two integers, which may be as large as the memory."""
    return (float(a) if type(a) is int else a) ** b


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, power, operator.floordiv, operator.mod]
UNARY = [operator.neg, operator.pos, operator.abs]
COMPARED = [operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]

Program = Callable[[list[Any]], Any]
values = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.1, 0.9, 0.999, 1e-8, 2.0**-1074, 1.7976931348623157e308]),
    st.floats(-100.0, 100.0),
    st.floats(allow_nan=False, allow_infinity=False),
)
constants = st.one_of(values, st.integers(-3, 5), st.just(2**53 + 1))


def unary(function: Callable[[Any], Any], a: Program) -> Program:
    return lambda symbols: function(a(symbols))


def binary(function: Callable[[Any, Any], Any], a: Program, b: Program) -> Program:
    return lambda symbols: function(a(symbols), b(symbols))


def chosen(function: Callable[[Any, Any], bool], a: Program, b: Program) -> Program:
    """One or the other, as Python's `if` would take it."""

    def run(symbols: list[Any]) -> Any:
        first, second = a(symbols), b(symbols)
        return first if function(first, second) else second

    return run


leaves = st.one_of(
    st.integers(0, len(SYMBOLS) - 1).map(lambda number: lambda symbols: symbols[number]), constants.map(lambda constant: lambda _: constant)
)
programs = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(unary, st.sampled_from(UNARY), inner),
        st.builds(binary, st.sampled_from(BINARY), inner, inner),
        st.builds(chosen, st.sampled_from(COMPARED), inner, inner),
    ),
    max_leaves=8,
)


def outcome(program: Program, symbols: list[Any]) -> Any:
    """What a program computes: a number, or the kind of error."""
    try:
        return program(symbols)
    except (ArithmeticError, TypeError) as error:  # what is complex has no order
        return type(error)


def bits(value: Any) -> Any:
    return struct.pack("d", value) if isinstance(value, (int, float)) else value


@given(programs, st.lists(values, min_size=3, max_size=3), st.lists(values, min_size=3, max_size=3))
def test_formulas_are_what_python_computes(program: Program, first: list[float], second: list[float]) -> None:
    tracer = Tracer()
    found = outcome(program, [tracer.symbol(symbol, value) for symbol, value in zip(SYMBOLS, first, strict=True)])
    expected = outcome(program, first)
    if not isinstance(found, Number):
        assert found == expected or (found != found and expected != expected)
        made = [] if isinstance(found, (type, complex)) else [found]
    else:
        assert bits(found.true) == bits(expected)
        known = tracer.found(float.__add__(found, 0.0))
        assert known is not None
        assert bits(known.true) == bits(expected)
        assert known.expression == found.expression
        made = [found.expression]
    if not made:
        return
    formulas = Formulas(SYMBOLS, [comparison.expression for comparison in tracer.comparisons], made)
    for numbers in (first, second):
        evaluated = formulas.evaluate(numbers)
        # What Python does otherwise with other values is recorded anew.
        if evaluated is not None and evaluated[0] == [comparison.outcome for comparison in tracer.comparisons]:
            assert bits(evaluated[1][0]) == bits(outcome(program, numbers))
        else:
            assert numbers is not first


@given(st.lists(programs, min_size=2, max_size=6), st.lists(values, min_size=3, max_size=3))
def test_different_numbers_are_told_apart(several: list[Program], numbers: list[float]) -> None:
    tracer = Tracer()
    symbols = [tracer.symbol(symbol, value) for symbol, value in zip(SYMBOLS, numbers, strict=True)]
    made = [found for found in (outcome(program, symbols) for program in several) if isinstance(found, Number)]
    for number in made:
        known = tracer.found(float.__add__(number, 0.0))
        assert known is not None
        assert known.expression == number.expression
    for constant in (*numbers, *(number.true for number in made), 0.0, 1.0, math.inf):
        assert tracer.found(constant) is None


UNFOLLOWED: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "int": (int, 5.0, 6.0),
    "round": (round, 5.0, 6.0),
    "floor": (math.floor, 5.0, 6.0),
    "ceil": (math.ceil, 5.0, 6.0),
    "trunc": (math.trunc, 5.0, 6.0),
    "is_integer": (lambda x: x.is_integer(), 5.0, 5.5),
    "infinite": (lambda x: x * 1e308, 5.0, 0.5),
    "complex": (lambda x: (-x) ** 0.5, 5.0, 4.0),
}


@pytest.mark.parametrize("name", UNFOLLOWED)
def test_what_cannot_be_followed_is_true_and_holds_for_this_value_only(name: str) -> None:
    kept, first, second = UNFOLLOWED[name]
    tracer = Tracer()
    symbol = SYMBOLS[0]
    assert kept(tracer.symbol(symbol, first)) == kept(first)
    formulas = Formulas([symbol], [comparison.expression for comparison in tracer.comparisons])
    outcomes = [comparison.outcome for comparison in tracer.comparisons]
    assert formulas.evaluate([first]) == [outcomes]
    assert formulas.evaluate([second]) != [outcomes]


def test_divmod_is_followed() -> None:
    tracer = Tracer()
    whole, rest = divmod(tracer.symbol(SYMBOLS[0], 17.0), 5)
    assert (whole.true, rest.true) == (3.0, 2.0)
    assert Formulas(SYMBOLS[:1], [whole.expression, rest.expression]).evaluate([29.0]) == [[5.0, 4.0]]


def test_what_python_would_raise_for_is_not_evaluated() -> None:
    tracer = Tracer()
    inverse = 1 / tracer.symbol(SYMBOLS[0], 4.0)
    assert Formulas(SYMBOLS[:1], [inverse.expression]).evaluate([0.0]) is None


def test_a_constant_is_not_taken_for_a_hyperparameter_that_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + (step - 1) * lr_decay is 1.0, and so are other numbers of the step."""
    monkeypatch.setenv("XLA_TIERED_COMPILATION", "0")
    found = []
    for capture in (False, True):
        torch.manual_seed(2)
        parameter = nn.Parameter(torch.randn(5).to("xla"))
        optimizer = torch.optim.Adagrad([parameter], lr=0.1, lr_decay=0.0)

        def train(x: Tensor, parameter: nn.Parameter = parameter, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = ((parameter + x) * 1.0 + 1.0).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = torch_xla.compile(train, capture=capture)
        losses = []
        for number in range(16):
            optimizer.param_groups[0]["lr_decay"] = 0.0 if number < 8 else 0.5
            losses.append(step(torch.full((5,), 0.1).to("xla")).item())
        found.append((losses, parameter.tolist()))
    assert found[0] == found[1]


def test_a_float_dampening_is_followed() -> None:
    weight = nn.Parameter(torch.ones(3).to("xla"))
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.5, dampening=0.0)

    def train(x: Tensor) -> None:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    step = torch_xla.compile(train, capture=True)
    for _ in range(6):
        step(torch.ones(3).to("xla"))
    expected, momentum = 1.0, 0.0
    for _ in range(6):
        momentum = 0.5 * momentum + 1.0
        expected -= 0.5 * momentum
    assert weight.tolist() == [expected] * 3


def test_logarithms_are_followed() -> None:
    tracer = Tracer()
    found = log(tracer.symbol(SYMBOLS[0], 0.9))
    assert isinstance(found, Number)
    assert found.true == math.log(0.9)
    formulas = Formulas(SYMBOLS[:1], [found.expression])
    assert formulas.evaluate([0.5]) == [[math.log(0.5)]]
    assert formulas.evaluate([0.0]) is None


def test_a_rate_that_is_another_one_inside_only() -> None:
    def trained(capture: bool) -> tuple[Tensor, float]:
        weight = nn.Parameter(torch.ones(3).to("xla"))
        optimizer = torch.optim.SGD([weight], lr=0.5)

        def train(x: Tensor) -> None:
            for rate in (0.5, 0.25, 0.125):
                optimizer.param_groups[0]["lr"] = rate
                optimizer.zero_grad()
                (weight * x).sum().backward()
                optimizer.step()

        step = torch_xla.compile(train, capture=capture)
        for number in range(6):
            step(torch.full((3,), float(number)).to("xla"))
        return weight.detach().cpu(), optimizer.param_groups[0]["lr"]

    captured, recorded = trained(True), trained(False)
    assert torch.equal(captured[0], recorded[0]) and captured[1] == recorded[1] == 0.125


class EachFourth(torch.optim.Optimizer):
    """Goes up at each fourth step, by a count on the CPU."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.5})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("step", torch.tensor(0.0)).add_(1)
            parameter.add_(parameter.grad, alpha=-0.5 if state["step"] % 4 == 0 else 1.0)


def test_a_way_that_depends_on_a_count_is_followed() -> None:
    weight = nn.Parameter(torch.ones(3).to("xla"))
    optimizer = EachFourth([weight])

    def train(x: Tensor) -> None:
        optimizer.zero_grad()
        (weight * x).sum().backward()
        optimizer.step()

    step = torch_xla.compile(train, capture=True)
    for _ in range(16):
        step(torch.ones(3).to("xla"))
    assert weight.tolist() == [1.0 + 12 - 4 * 0.5] * 3
