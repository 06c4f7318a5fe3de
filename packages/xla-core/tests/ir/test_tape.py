"""The tape: slots, leaves, fed numbers, reads of views, who holds what, and the random state."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch

from xla_core.errors import ExecutionError, UnsupportedDtypeError
from xla_core.frontend import views
from xla_core.ir.aval import aval_of
from xla_core.ir.signature import HOLE, Signature
from xla_core.ir.tape import (
    BLANK,
    FLOAT_FIXED,
    FLOAT_INPUT,
    INT_INPUT,
    KEPT,
    Feed,
    FeedKind,
    Recorder,
    Tape,
    Value,
    blank_value,
    buffer_value,
)

AVAL = aval_of((2, 3), torch.float32)
PAIR = aval_of((3,), torch.int64)


def recorder() -> Recorder:
    return Recorder(0)


def leaf(owner: Recorder, shared: bool = False) -> Value:
    return buffer_value(owner, AVAL, jnp.ones((2, 3), jnp.float32), shared)


def signature(*outs: Any, operands: int = 1) -> Signature:
    return Signature("test.op", lambda context, *args: args, (HOLE,) * operands, {}, outs or (AVAL,))


def test_avals_are_interned() -> None:
    assert aval_of((2, 3), torch.float32) is AVAL
    assert aval_of((2, 3), torch.float64) is not AVAL and aval_of((3, 2), torch.float32) is not AVAL
    assert (AVAL.nbytes, repr(AVAL), repr(aval_of((), torch.bool))) == (24, "f32[2,3]", "pred[]")
    assert AVAL.meta.shape == (2, 3) and AVAL.meta.device.type == "meta" and AVAL.struct.shape == (2, 3)
    with pytest.raises(UnsupportedDtypeError):
        aval_of((1,), torch.complex32)


def test_a_value_from_before_enters_once_as_a_leaf() -> None:
    owner = recorder()
    tape, value = owner.tape, leaf(owner)
    assert tape.adopt(value) == tape.adopt(value) == 0
    assert tape.entries == [AVAL] and tape.feeds == {0: value.buffer} and tape.refs[0]() is value
    assert value.tape is tape and value.slot == 0
    other = Tape()
    assert other.adopt(value) == 0 and value.tape is other


def test_who_lets_go_of_a_leaf_gives_it_away_unless_it_is_shared() -> None:
    owner = recorder()
    mine, shared = leaf(owner), leaf(owner, shared=True)
    for value in (mine, shared):
        owner.tape.adopt(value)
    del mine, shared, value
    assert owner.tape.refs[0]() is None
    assert owner.tape.refs[1] is KEPT and owner.tape.refs[1]() is not None


def test_a_value_without_a_buffer_has_failed() -> None:
    owner = recorder()
    value = leaf(owner)
    value.buffer = None
    with pytest.raises(ExecutionError, match=r"f32\[2,3\] on xla:0 has no value"):
        owner.tape.adopt(value)


def test_a_blank_value_is_recorded_when_it_is_used() -> None:
    owner = recorder()
    value = blank_value(owner, AVAL)
    assert value.slot == BLANK and not owner.tape.entries
    slot = owner.tape.adopt(value)
    assert owner.tape.entries[slot][0].name == "xla.empty"  # type: ignore[index]
    assert owner.tape.adopt(value) == slot and owner.tape.refs[slot]() is value


def test_operations_take_one_slot_or_one_and_their_results() -> None:
    owner = recorder()
    tape = owner.tape
    base = tape.adopt(leaf(owner))
    single = tape.append(signature(), [base])
    first = tape.append(signature(AVAL, PAIR), [single])
    last = tape.append(signature(operands=2), [first, first + 1])
    assert (base, single, first, last) == (0, 1, 3, 5)
    assert [type(entry).__name__ for entry in tape.entries] == ["Aval", "tuple", "tuple", "NoneType", "NoneType", "tuple"]
    assert len(tape.refs) == len(tape.entries)
    assert tape.entries[5][1:] == (3, 4)  # type: ignore[index]


def test_a_result_is_known_as_long_as_somebody_holds_it() -> None:
    owner = recorder()
    slot = owner.tape.append(signature(), [owner.tape.adopt(leaf(owner))])
    assert owner.tape.refs[slot]() is None
    value = owner.tape.define(owner, slot, AVAL)
    assert owner.tape.refs[slot]() is value and (value.slot, value.aval, value.buffer) == (slot, AVAL, None)
    del value
    assert owner.tape.refs[slot]() is None


def test_numbers_are_fed_by_kind() -> None:
    tape = Tape()
    slots = [
        tape.feed(FLOAT_INPUT, 0.5),
        tape.feed(FLOAT_FIXED, 0.5),
        tape.feed(INT_INPUT, 3),
        tape.feed(Feed(FeedKind.INT, False, PAIR), 4),
    ]
    assert slots == [0, 1, 2, 3] and list(tape.feeds.values()) == [0.5, 0.5, 3, 4]
    assert tape.entries == [FLOAT_INPUT, FLOAT_FIXED, INT_INPUT, Feed(FeedKind.INT, False, PAIR)]
    assert all(reference() is None for reference in tape.refs)


def test_a_view_is_read_once_for_each_value() -> None:
    owner = recorder()
    root = views.root(AVAL)
    turned = views.child(root, torch.ops.aten.t.default, (), {})
    assert isinstance(turned, views.ViewSpec)
    base = owner.tape.adopt(leaf(owner))
    assert owner.tape.read(base, root) == base
    slot = owner.tape.read(base, turned)
    assert owner.tape.read(base, turned) == slot
    other = owner.tape.append(signature(), [base])
    assert owner.tape.read(other, turned) not in (slot, base, other)
    assert len(owner.tape.entries) == 4


def test_the_random_state_moves_by_its_generator() -> None:
    owner = recorder()
    owner.seed = 42
    assert owner.draw() == 42
    assert owner.draw() == (42 * 214013 + 2531011) % 2**64
    owner.seed = 2**64 - 1
    owner.end_step()
    assert owner.seed == ((2**64 - 1) * 7012063 + 1012031) % 2**64
