"""The pending graph: slots, leaves, scalar inputs, reads of views, who holds what, and the random state."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
import torch

from xla_core.base.errors import ExecutionError, UnsupportedDtypeError
from xla_core.engine.graph.aval import aval_of
from xla_core.engine.graph.entries import FLOAT_FIXED, FLOAT_INPUT, INT_INPUT, ScalarInput, ScalarKind
from xla_core.engine.graph.pending_graph import BLANK, KeptRef, PendingGraph, Recorder, Value, blank_value, buffer_value
from xla_core.engine.graph.signature import PLACEHOLDER, Signature
from xla_core.engine.tensor import views

AVAL = aval_of((2, 3), torch.float32)
PAIR = aval_of((3,), torch.int64)


def recorder() -> Recorder:
    return Recorder(0)


def leaf(owner: Recorder, shared: bool = False) -> Value:
    return buffer_value(owner, AVAL, jnp.ones((2, 3), jnp.float32), shared)


def signature(*outs: Any, operands: int = 1) -> Signature:
    return Signature("test.op", lambda context, *args: args, (PLACEHOLDER,) * operands, {}, outs or (AVAL,))


def test_avals_are_interned() -> None:
    assert aval_of((2, 3), torch.float32) is AVAL
    assert aval_of((2, 3), torch.float64) is not AVAL and aval_of((3, 2), torch.float32) is not AVAL
    assert (AVAL.nbytes, repr(AVAL), repr(aval_of((), torch.bool))) == (24, "f32[2,3]", "pred[]")
    assert AVAL.meta.shape == (2, 3) and AVAL.meta.device.type == "meta" and AVAL.struct.shape == (2, 3)
    with pytest.raises(UnsupportedDtypeError):
        aval_of((1,), torch.complex32)


def test_a_value_from_before_enters_once_as_a_leaf() -> None:
    owner = recorder()
    pending_graph, value = owner.pending_graph, leaf(owner)
    assert pending_graph.adopt(value) == pending_graph.adopt(value) == 0
    assert pending_graph.entries == [AVAL] and pending_graph.input_data == {0: value.buffer} and pending_graph.refs[0]() is value
    assert value.pending_graph is pending_graph and value.slot == 0
    other = PendingGraph()
    assert other.adopt(value) == 0 and value.pending_graph is other


def test_who_lets_go_of_a_leaf_gives_it_away_unless_it_is_shared() -> None:
    owner = recorder()
    mine, shared = leaf(owner), leaf(owner, shared=True)
    for value in (mine, shared):
        owner.pending_graph.adopt(value)
    del mine, shared, value
    assert owner.pending_graph.refs[0]() is None and type(owner.pending_graph.refs[0]) is not KeptRef
    assert owner.pending_graph.refs[1]() is None and type(owner.pending_graph.refs[1]) is KeptRef


def test_a_value_without_a_buffer_has_failed() -> None:
    owner = recorder()
    value = leaf(owner)
    value.buffer = None
    with pytest.raises(ExecutionError, match=r"f32\[2,3\] on xla:0 has no value"):
        owner.pending_graph.adopt(value)


def test_a_blank_value_is_recorded_when_it_is_used() -> None:
    owner = recorder()
    value = blank_value(owner, AVAL)
    assert value.slot == BLANK and not owner.pending_graph.entries
    slot = owner.pending_graph.adopt(value)
    assert owner.pending_graph.entries[slot][0].name == "xla.empty"  # type: ignore[index]
    assert owner.pending_graph.adopt(value) == slot and owner.pending_graph.refs[slot]() is value


def test_operations_take_one_slot_or_one_and_their_results() -> None:
    owner = recorder()
    pending_graph = owner.pending_graph
    base = pending_graph.adopt(leaf(owner))
    single = pending_graph.append(signature(), [base])
    first = pending_graph.append(signature(AVAL, PAIR), [single])
    last = pending_graph.append(signature(operands=2), [first, first + 1])
    assert (base, single, first, last) == (0, 1, 3, 5)
    assert [type(entry).__name__ for entry in pending_graph.entries] == ["Aval", "tuple", "tuple", "NoneType", "NoneType", "tuple"]
    assert len(pending_graph.refs) == len(pending_graph.entries)
    assert pending_graph.entries[5][1:] == (3, 4)  # type: ignore[index]


def test_a_result_is_known_as_long_as_somebody_holds_it() -> None:
    owner = recorder()
    slot = owner.pending_graph.append(signature(), [owner.pending_graph.adopt(leaf(owner))])
    assert owner.pending_graph.refs[slot]() is None
    value = owner.pending_graph.define(owner, slot, AVAL)
    assert owner.pending_graph.refs[slot]() is value and (value.slot, value.aval, value.buffer) == (slot, AVAL, None)
    del value
    assert owner.pending_graph.refs[slot]() is None


def test_numbers_are_fed_by_kind() -> None:
    pending_graph = PendingGraph()
    slots = [
        pending_graph.add_scalar(FLOAT_INPUT, 0.5),
        pending_graph.add_scalar(FLOAT_FIXED, 0.5),
        pending_graph.add_scalar(INT_INPUT, 3),
        pending_graph.add_scalar(ScalarInput(ScalarKind.INT, False, PAIR), 4),
    ]
    assert slots == [0, 1, 2, 3] and list(pending_graph.input_data.values()) == [0.5, 0.5, 3, 4]
    assert pending_graph.entries == [FLOAT_INPUT, FLOAT_FIXED, INT_INPUT, ScalarInput(ScalarKind.INT, False, PAIR)]
    assert all(reference() is None for reference in pending_graph.refs)


def test_a_view_is_read_once_for_each_value() -> None:
    owner = recorder()
    root = views.root(AVAL)
    turned = views.child(root, torch.ops.aten.t.default, (), {})
    assert isinstance(turned, views.ViewSpec)
    base = owner.pending_graph.adopt(leaf(owner))
    assert owner.pending_graph.read(base, root) == base
    slot = owner.pending_graph.read(base, turned)
    assert owner.pending_graph.read(base, turned) == slot
    other = owner.pending_graph.append(signature(), [base])
    assert owner.pending_graph.read(other, turned) not in (slot, base, other)
    assert len(owner.pending_graph.entries) == 4


def test_the_random_state_moves_by_its_generator() -> None:
    owner = recorder()
    owner.seed = 42
    assert owner.draw() == 42
    assert owner.draw() == (42 * 214013 + 2531011) % 2**64
    owner.seed = 2**64 - 1
    owner.end_step()
    assert owner.seed == ((2**64 - 1) * 7012063 + 1012031) % 2**64
