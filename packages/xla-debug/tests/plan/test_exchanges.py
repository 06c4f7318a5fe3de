"""Where collectives begin and end in programs made by hand, in each form that compilers give them."""

from __future__ import annotations

import handmade_hlo
from handmade_hlo import channel, computation, op, target

from xla_debug.plan.exchanges import exchange_at
from xla_debug.plan.hlo import Program
from xla_debug.plan.traffic import collective
from xla_debug.plan.work import steps

PART, WHOLE = handmade_hlo.array(4), handmade_hlo.array(16)
BOTH = handmade_hlo.tuple_of(PART, WHOLE)


def gather(number: int, parameter: int, of: int) -> bytes:
    return op(number, "all-gather", WHOLE, parameter, more=channel(of))


def program_of(*entry: bytes, root: int, called: tuple[bytes, ...] = ()) -> Program:
    return Program(handmade_hlo.module(1, *called, computation(1, root, *entry)))


def seen(program: Program) -> list[tuple[int, int | None, bool, bool]]:
    """Of each step: its instruction, the collective there, whether that begins and ends."""
    return [
        (
            step.instruction.id,
            step.exchange and step.exchange.collective.id,
            bool(step.exchange and step.exchange.begins),
            bool(step.exchange and step.exchange.ends),
        )
        for step in steps(program)
    ]


def test_a_collective_that_holds_all_up() -> None:
    program = program_of(op(11, "parameter", PART), gather(12, 11, 1), op(13, "negate", WHOLE, 12), root=13)
    assert seen(program) == [(12, 12, True, True), (13, None, False, False)]


def test_a_collective_in_the_background() -> None:
    program = program_of(
        op(11, "parameter", PART),
        op(12, "all-gather-start", BOTH, 11, more=channel(1)),
        op(13, "negate", PART, 11),
        op(14, "all-gather-done", WHOLE, 12),
        root=14,
    )
    assert seen(program) == [(12, 12, True, False), (13, None, False, False), (14, 12, False, True)]
    assert exchange_at(program, program.by_id[12]).key == exchange_at(program, program.by_id[14]).key  # type: ignore[union-attr]


def test_a_wrapped_collective_in_the_background() -> None:
    wrapped = computation(2, 22, op(21, "parameter", PART), gather(22, 21, 1))
    program = program_of(
        op(11, "parameter", PART),
        op(12, "async-start", BOTH, 11, called=(2,)),
        op(13, "async-update", BOTH, 12),
        op(14, "async-done", WHOLE, 13),
        root=14,
        called=(wrapped,),
    )
    assert seen(program) == [(12, 22, True, False), (14, 22, False, True)]


def test_a_collective_that_goes_on_step_by_step_beside_products() -> None:
    start = computation(
        2, 23, op(21, "parameter", PART), gather(22, 21, 7), op(23, "custom-call", BOTH, 22, more=target("AsyncCollectiveStart"))
    )
    beside = computation(3, 33, op(31, "parameter", PART), gather(32, 31, 7), op(33, "negate", PART, 31))
    done = computation(
        4, 43, op(41, "parameter", PART), gather(42, 41, 7), op(43, "custom-call", WHOLE, 42, more=target("AsyncCollectiveDone"))
    )
    program = program_of(
        op(11, "parameter", PART),
        op(12, "fusion", BOTH, 11, called=(2,)),
        op(13, "fusion", PART, 11, called=(3,)),
        op(14, "fusion", PART, 11, called=(3,)),
        op(15, "fusion", WHOLE, 11, called=(4,)),
        root=15,
        called=(start, beside, done),
    )
    assert seen(program) == [(12, 22, True, False), (13, None, False, False), (14, None, False, False), (15, 42, False, True)]


def test_a_fusion_of_a_sum_and_a_slice_is_a_reduce_scatter() -> None:
    fused = computation(2, 23, op(21, "parameter", WHOLE), op(22, "all-reduce", WHOLE, 21), op(23, "dynamic-slice", PART, 22))
    program = program_of(op(11, "parameter", WHOLE), op(12, "fusion", PART, 11, called=(2,)), root=12, called=(fused,))
    [step] = steps(program)
    assert step.exchange is not None and step.exchange.begins and step.exchange.ends
    found = collective(program, step.instruction, step.exchange.collective, 4)
    assert (found.kind, found.size, found.nbytes) == ("reduce-scatter", 4, 64)
