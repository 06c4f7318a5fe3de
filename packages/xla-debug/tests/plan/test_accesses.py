"""Bytes that programs read, write and hold, and constants behind their operands, beside what they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from xla_debug.plan.constants import constant_of
from xla_debug.plan.hlo import Program
from xla_debug.plan.liveness import memory
from xla_debug.plan.work import steps
from xla_debug.profiling.wire_format import number_field, text_field

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


S32, TUPLE = 4, 13


def shape_of(*dims: int) -> bytes:
    return number_field(2, S32) + b"".join(number_field(3, size) for size in dims)


def op(number: int, opcode: str, shape: bytes, *operands: int, called: tuple[int, ...] = (), more: bytes = b"") -> bytes:
    numbers = [number_field(35, number), *[number_field(36, each) for each in operands], *[number_field(38, each) for each in called]]
    return text_field(2, text_field(1, b"x") + text_field(2, opcode.encode()) + text_field(3, shape) + b"".join(numbers) + more)


def computation(number: int, root: int, *ops: bytes) -> bytes:
    return text_field(3, b"".join(ops) + number_field(5, number) + number_field(6, root))


def test_a_constant_is_found_through_a_loop_and_what_changes_is_none() -> None:
    table, pair = shape_of(2, 3), number_field(2, TUPLE) + 2 * text_field(4, shape_of(2, 3))
    literal = text_field(8, b"".join(number_field(4, value) for value in (0, 1, 2, 3, 0, 1)))
    body = computation(
        1,
        16,
        op(11, "parameter", pair),
        op(12, "get-tuple-element", table, 11, more=number_field(13, 0)),
        op(13, "get-tuple-element", table, 11, more=number_field(13, 1)),
        op(14, "copy", table, 12),
        op(15, "negate", table, 13),
        op(16, "tuple", pair, 14, 15),
    )
    entry = computation(
        2,
        24,
        op(21, "constant", table, more=literal),
        op(22, "parameter", table),
        op(23, "tuple", pair, 21, 21),
        op(24, "while", pair, 23, called=(1,)),
        op(25, "get-tuple-element", table, 23, more=number_field(13, 1)),
    )
    program = Program(body + entry + number_field(6, 2))
    expected = np.array([[0, 1, 2], [3, 0, 1]])
    for kept in (12, 14, 21, 25):
        assert np.array_equal(constant_of(program, kept), expected)  # type: ignore[arg-type]
    assert constant_of(program, 13) is None, "a turn changes it"
    assert constant_of(program, 22) is None and constant_of(program, 99) is None


def test_what_goes_through_a_loop_beside_a_result_is_held_and_no_result() -> None:
    table, pair = shape_of(2, 3), number_field(2, TUPLE) + 2 * text_field(4, shape_of(2, 3))
    body = computation(
        1,
        14,
        op(11, "parameter", pair),
        op(12, "get-tuple-element", table, 11, more=number_field(13, 0)),
        op(13, "get-tuple-element", table, 11, more=number_field(13, 1)),
        op(14, "tuple", pair, 12, 13),
    )
    entry = computation(
        2,
        29,
        op(21, "parameter", table),
        op(22, "negate", table, 21),  # becomes the result
        op(23, "negate", table, 21),  # is read after the loop
        op(24, "tuple", pair, 22, 23),
        op(25, "while", pair, 24, called=(1,)),
        op(26, "get-tuple-element", table, 25, more=number_field(13, 0)),
        op(27, "get-tuple-element", table, 25, more=number_field(13, 1)),
        op(28, "negate", table, 27),
        op(29, "tuple", pair, 26, 28),
    )
    held = memory(Program(body + entry + number_field(6, 2)))
    assert {buffer.instruction.id: buffer.nbytes for buffer in held.largest if buffer.nbytes} == {23: 24}
    assert held.temporaries == (0, 0, 24, 24, 24, 24, 24, 24, 0)
