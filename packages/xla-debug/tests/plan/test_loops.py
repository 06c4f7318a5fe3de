"""How often loops run, read from their conditions, beside how often they do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from xla_debug.plan.hlo import Program
from xla_debug.plan.loops import trips


def loop_of(function: Callable[..., Any], *arguments: jax.ShapeDtypeStruct) -> tuple[Program, Any]:
    """A program and its one loop, without what the compiler noted of it."""
    compiled: Any = jax.jit(function).lower(*arguments).compile()
    program = Program(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    [loop] = [op for op in program.by_id.values() if op.opcode == "while"]
    return program, dataclasses.replace(loop, config={})


X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
NUMBER = jax.ShapeDtypeStruct((), jnp.int32)


def counted(start: int, end: int, step: int, dtype: Any) -> Callable[[jax.Array], Any]:
    """A loop from start to end, as long as the number is less (or greater, downwards)."""

    def function(x: jax.Array) -> Any:
        def goes_on(state: tuple[Any, jax.Array]) -> Any:
            return state[0] < end if step > 0 else state[0] > end

        return lax.while_loop(goes_on, lambda state: (state[0] + dtype(step), jnp.tanh(state[1] @ state[1])), (dtype(start), x))

    return function


@pytest.mark.parametrize(
    ("start", "end", "step", "turns"),
    [(0, 7, 1, 7), (0, 2, 1, 2), (3, 40, 5, 8), (10, 0, -3, 4), (0, 1_000_000_007, 2, 500_000_004)],
)
def test_turns_follow_from_the_numbers_of_a_loop(start: int, end: int, step: int, turns: int) -> None:
    assert trips(*loop_of(counted(start, end, step, jnp.int32), X)) == turns


def test_a_counter_in_two_halves() -> None:
    """As XLA:TPU makes it of one with 64 bits: a low and a high number without sign, and a carry."""

    def function(x: jax.Array) -> Any:
        def goes_on(state: tuple[Any, ...]) -> Any:
            low, high, _ = state
            return (lax.bitcast_convert_type(high, jnp.int32) < 0) | ((high == 0) & (low < 32))

        def turn(state: tuple[Any, ...]) -> tuple[Any, ...]:
            low, high, x = state
            after = low + jnp.uint32(1)
            return after, high + (after < low).astype(jnp.uint32), jnp.tanh(x @ x)

        return lax.while_loop(goes_on, turn, (jnp.uint32(0), jnp.uint32(0), x))

    assert trips(*loop_of(function, X)) == 32


def test_numbers_that_grow_unevenly_are_followed_turn_by_turn() -> None:
    def function(x: jax.Array) -> Any:
        return lax.while_loop(lambda state: state[0] < 1000, lambda state: (state[0] * 2, jnp.tanh(state[1] @ state[1])), (1, x))

    assert trips(*loop_of(function, X)) == 10  # 2, 4, … 1024


def test_a_loop_until_data_says_so_counts_once() -> None:
    def until(x: jax.Array) -> Any:
        return lax.while_loop(lambda x: x.sum() < 10, lambda x: jnp.tanh(x @ x) + 1, x)

    def so_often(x: jax.Array, number: jax.Array) -> Any:
        return lax.fori_loop(0, number, lambda _, x: jnp.tanh(x @ x), x)

    assert trips(*loop_of(until, X)) == 1
    assert trips(*loop_of(so_often, X, NUMBER)) == 1
