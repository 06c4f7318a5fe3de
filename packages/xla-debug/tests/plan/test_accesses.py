"""Bytes that programs read, write and hold, and constants behind their operands, beside what they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import handmade_hlo
import jax
import jax.numpy as jnp
import numpy as np
from handmade_hlo import computation, element, op, position
from jax import lax

from xla_debug.plan.constants import constant_of, same_each_turn
from xla_debug.plan.hlo import Program
from xla_debug.plan.liveness import memory
from xla_debug.plan.work import steps

LAYERS, SIZE = 50, 128
LAYER = SIZE * SIZE * 4


def program_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Program:
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    compiled: Any = jax.jit(function).lower(*arguments).compile()
    return Program(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())


def nbytes(program: Program) -> int:
    return sum(step.times * step.nbytes for step in steps(program))


def test_a_turn_of_a_loop_reads_its_own_slice() -> None:
    def stack(x: jax.Array, weights: jax.Array) -> jax.Array:
        return lax.scan(lambda carry, weight: (jnp.tanh(carry @ weight), None), x, weights)[0]

    total = nbytes(program_of(stack, (SIZE, SIZE), (LAYERS, SIZE, SIZE)))
    assert LAYERS * 3 * LAYER <= total < LAYERS * 12 * LAYER, "each turn a layer and its activations, not all layers"


def test_a_turn_of_a_loop_writes_its_own_slice() -> None:
    def all_sums(x: jax.Array, parts: jax.Array) -> jax.Array:
        return lax.scan(lambda carry, part: (carry + part, carry * part), x, parts)[1]

    total = nbytes(program_of(all_sums, (SIZE, SIZE), (LAYERS, SIZE, SIZE)))
    assert LAYERS * 3 * LAYER <= total < LAYERS * 12 * LAYER


def test_fusions_within_fusions_read_and_write_slices_and_move_nothing_that_they_pass_on() -> None:
    layers, layer, index = handmade_hlo.array(LAYERS, SIZE), handmade_hlo.array(1, SIZE), handmade_hlo.array()
    read = computation(
        1,
        13,
        op(11, "parameter", layers, more=position(0)),
        op(12, "parameter", index, more=position(1)),
        op(13, "dynamic-slice", layer, 11, 12, 12),
    )
    write = computation(
        2,
        24,
        op(21, "parameter", layers, more=position(0)),
        op(22, "parameter", layer, more=position(1)),
        op(23, "parameter", index, more=position(2)),
        op(24, "dynamic-update-slice", layers, 21, 22, 23, 23),
    )
    both = computation(
        3,
        36,
        op(31, "parameter", layers, more=position(0)),
        op(32, "parameter", index, more=position(1)),
        op(33, "parameter", layers, more=position(2)),
        op(34, "fusion", layer, 31, 32, called=(1,)),
        op(35, "fusion", layers, 31, 34, 32, called=(2,)),
        op(36, "tuple", handmade_hlo.tuple_of(layers, layers), 35, 33),
    )
    entry = computation(
        4,
        44,
        op(41, "parameter", layers, more=position(0)),
        op(42, "parameter", index, more=position(1)),
        op(43, "parameter", layers, more=position(2)),
        op(44, "fusion", handmade_hlo.tuple_of(layers, layers), 41, 42, 43, called=(3,)),
    )
    indices = 4
    assert nbytes(Program(handmade_hlo.module(4, read, write, both, entry))) == 2 * 4 * SIZE + indices


TABLE = handmade_hlo.array(2, 3)
PAIR = handmade_hlo.tuple_of(TABLE, TABLE)


def test_a_constant_is_found_through_a_loop_and_what_changes_is_none() -> None:
    body = computation(
        1,
        16,
        op(11, "parameter", PAIR),
        op(12, "get-tuple-element", TABLE, 11, more=element(0)),
        op(13, "get-tuple-element", TABLE, 11, more=element(1)),
        op(14, "copy", TABLE, 12),
        op(15, "negate", TABLE, 13),
        op(16, "tuple", PAIR, 14, 15),
    )
    entry = computation(
        2,
        24,
        op(21, "constant", TABLE, more=handmade_hlo.integers(0, 1, 2, 3, 0, 1)),
        op(22, "parameter", TABLE),
        op(23, "tuple", PAIR, 21, 21),
        op(24, "while", PAIR, 23, called=(1,)),
        op(25, "get-tuple-element", TABLE, 23, more=element(1)),
    )
    program = Program(handmade_hlo.module(2, body, entry))
    expected = np.array([[0, 1, 2], [3, 0, 1]])
    for kept in (12, 14, 21, 25):
        assert np.array_equal(constant_of(program, kept), expected)  # type: ignore[arg-type]
    assert constant_of(program, 13) is None, "a turn changes it"
    assert constant_of(program, 22) is None and constant_of(program, 99) is None
    assert [same_each_turn(program, number) for number in (12, 14, 13, 15, 25)] == [True, True, False, False, False]


def test_what_goes_through_a_loop_beside_a_result_is_held_and_no_result() -> None:
    body = computation(
        1,
        14,
        op(11, "parameter", PAIR),
        op(12, "get-tuple-element", TABLE, 11, more=element(0)),
        op(13, "get-tuple-element", TABLE, 11, more=element(1)),
        op(14, "tuple", PAIR, 12, 13),
    )
    entry = computation(
        2,
        29,
        op(21, "parameter", TABLE),
        op(22, "negate", TABLE, 21),  # becomes a result
        op(23, "negate", TABLE, 21),  # is read after the loop
        op(24, "tuple", PAIR, 22, 23),
        op(25, "while", PAIR, 24, called=(1,)),
        op(26, "get-tuple-element", TABLE, 25, more=element(0)),
        op(27, "get-tuple-element", TABLE, 25, more=element(1)),
        op(28, "negate", TABLE, 27),
        op(29, "tuple", PAIR, 26, 28),
    )
    held = memory(Program(handmade_hlo.module(2, body, entry)))
    assert {buffer.instruction.id: buffer.nbytes for buffer in held.largest if buffer.nbytes} == {23: 24}
    assert held.temporaries == (0, 0, 24, 24, 24, 24, 24, 24, 0)
