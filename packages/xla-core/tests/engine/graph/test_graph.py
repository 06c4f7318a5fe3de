"""Cutting programs out of a pending graph: what a value needs, canonical numbering, what comes out, what may be reused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from xla_core.base.errors import InternalError
from xla_core.engine.compile.verify import verify
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.entries import (
    FLOAT_FIXED,
    FLOAT_INPUT,
    INT_FIXED,
    INT_INPUT,
    SEED,
    ScalarInput,
    ScalarKind,
    aval_at,
    operation_at,
)
from xla_core.engine.graph.graph import Graph, Inputs, inputs_of, recorded_at
from xla_core.engine.graph.pending_graph import PendingGraph, Recorder, Value, buffer_value
from xla_core.engine.graph.selection import ancestors, dead_leaves, extract, live_slots, shrink, store_results
from xla_core.engine.graph.signature import PLACEHOLDER, Signature

F32 = aval_of((2,), torch.float32)
LARGE = aval_of((4096,), torch.float32)
I64 = aval_of((3,), torch.int64)
OWNER = Recorder(0)
ADD = Signature("test.add", lambda context, x, y: x + y, (PLACEHOLDER, PLACEHOLDER), {}, (F32,))
NEG = Signature("test.neg", lambda context, x: -x, (PLACEHOLDER,), {}, (F32,))
BOTH = Signature("test.both", lambda context, x: [x, x], (PLACEHOLDER,), {}, (F32, F32))


class Build:
    """A pending graph, and the values on it that somebody holds."""

    def __init__(self) -> None:
        self.pending_graph = PendingGraph()
        self.held: list[Value] = []

    def leaf(self, aval: Aval = F32, hold: bool = True) -> int:
        value = buffer_value(OWNER, aval, np.zeros(aval.shape, aval.physical))
        slot = self.pending_graph.adopt(value)
        if hold:
            self.held.append(value)
        return slot

    def op(self, signature: Signature, *slots: int, hold: int = 0) -> int:
        """Records; the first `hold` results are held."""
        first = self.pending_graph.append(signature, list(slots))
        for number in range(hold):
            self.held.append(self.pending_graph.define(OWNER, first + number, F32))
        return first


def needed(build: Build, *slots: int) -> tuple[tuple[Any, ...], dict[int, int]]:
    entries, renamed, _ = extract(build.pending_graph, ancestors(build.pending_graph, slots))
    return tuple(entries), renamed


def test_ancestors_are_what_a_value_needs_and_no_more() -> None:
    build = Build()
    a, unused, b = build.leaf(), build.leaf(), build.leaf()
    left, dead = build.op(ADD, a, b), build.op(NEG, unused)
    right = build.op(NEG, left)
    assert ancestors(build.pending_graph, [right]) == [a, b, left, right]
    assert ancestors(build.pending_graph, [left, dead]) == [a, unused, b, left, dead]
    assert ancestors(build.pending_graph, []) == []


def test_equal_computations_have_equal_programs_whatever_else_is_pending() -> None:
    first, second = Build(), Build()
    one = first.op(NEG, first.op(ADD, first.leaf(), first.leaf()))
    second.op(NEG, second.leaf())
    a = second.leaf()
    second.op(BOTH, a)
    b = second.leaf()
    two = second.op(NEG, second.op(ADD, a, b))
    left, right = needed(first, one), needed(second, two)
    assert left[0] == right[0] and left[1][one] == right[1][two]
    assert Graph(left[0], (3,)).key == Graph(right[0], (3,)).key
    assert Graph(left[0], (3,)).key != Graph(left[0], (2,)).key != Graph(left[0], (2,), (0,)).key


def test_operands_in_another_order_are_another_program() -> None:
    programs = set()
    for swapped in (False, True):
        build = Build()
        a, b = build.leaf(), build.op(NEG, build.leaf())
        programs.add(needed(build, build.op(ADD, *((b, a) if swapped else (a, b))))[0])
    assert len(programs) == 2


def test_an_operation_with_several_results_moves_as_one() -> None:
    build = Build()
    build.op(NEG, build.leaf())
    a = build.leaf()
    first = build.op(BOTH, a)
    last = build.op(NEG, first + 1)
    assert operation_at(build.pending_graph.entries, first + 1) == operation_at(build.pending_graph.entries, first) == first - 1
    entries, renamed = needed(build, last)
    assert [type(entry) for entry in entries] == [Aval, tuple, type(None), type(None), tuple]
    assert entries[4][1:] == (renamed[first + 1],) == (3,)
    assert aval_at(entries, 3) is F32 and aval_at(entries, 0) is F32 and aval_at(entries, 4) is F32


def test_inputs_are_sorted_by_kind_in_slot_order() -> None:
    build = Build()
    pending_graph = build.pending_graph
    (
        build.leaf(),
        pending_graph.add_scalar(FLOAT_INPUT, 1.5),
        pending_graph.add_scalar(INT_FIXED, 7),
        pending_graph.add_scalar(FLOAT_FIXED, 2.5),
    )
    (
        build.leaf(I64),
        pending_graph.add_scalar(INT_INPUT, 8),
        pending_graph.add_scalar(SEED, 9),
        pending_graph.add_scalar(FLOAT_INPUT, 3.5),
        pending_graph.add_scalar(ScalarInput(ScalarKind.INT, False, I64), 10),
    )
    inputs = inputs_of(pending_graph.entries, pending_graph.input_data)
    assert [buffer.shape for buffer in inputs.buffers] == [(2,), (3,)]
    assert (inputs.floats, inputs.fixed_floats, inputs.ints, inputs.fixed_ints, inputs.seeds) == ([1.5, 3.5], [2.5], [8, 10], [7], [9])


def test_what_is_held_comes_out_and_what_is_not_may_be_reused() -> None:
    build = Build()
    kept, given = build.leaf(LARGE), build.leaf(LARGE, hold=False)
    small = build.leaf(hold=False)
    dead = build.op(ADD, kept, given)
    live = build.op(BOTH, build.op(ADD, dead, small), hold=1)
    assert live_slots(build.pending_graph) == [live]
    assert dead_leaves(build.pending_graph) == (1,), "not the small one"
    build.held.clear()
    assert live_slots(build.pending_graph) == [] and dead_leaves(build.pending_graph) == (0, 1)


def test_a_computed_result_becomes_a_leaf_for_whoever_holds_it() -> None:
    build = Build()
    a = build.leaf()
    first = build.op(BOTH, a, hold=2)
    later = build.op(ADD, first, first + 1, hold=1)
    buffer = np.ones(2, np.float32)
    store_results(build.pending_graph, [first], [buffer])
    assert build.held[1].buffer is buffer and build.pending_graph.entries[first] is F32 and build.pending_graph.input_data[first] is buffer
    assert list(build.pending_graph.input_data) == [a, first]
    assert ancestors(build.pending_graph, [first]) == [first]
    assert ancestors(build.pending_graph, [later]) == [a, first - 1, first, later], "the other result still needs the operation"
    entries, renamed, input_data = extract(build.pending_graph, ancestors(build.pending_graph, [later]))
    assert [type(entry) for entry in entries] == [Aval, tuple, Aval, type(None), tuple]
    verify(Graph(tuple(entries), (renamed[later],)), inputs_of(entries, input_data))


def test_shrinking_keeps_what_is_asked_for_and_its_holders() -> None:
    build = Build()
    gone, a = build.leaf(), build.leaf()
    build.op(NEG, gone)
    live = build.op(NEG, a, hold=1)
    shrink(build.pending_graph, ancestors(build.pending_graph, [live]))
    assert len(build.pending_graph.entries) == len(build.pending_graph.refs) == 2
    unread, leaf, result = build.held
    assert (leaf.slot, result.slot) == (0, 1) and build.pending_graph.refs[1]() is result and list(build.pending_graph.input_data) == [0]
    assert unread.pending_graph is None and build.pending_graph.adopt(unread) == 2


def test_lines_are_those_of_the_call_or_of_the_first_one_like_it() -> None:
    signed = Signature("test.neg", lambda context, x: -x, (PLACEHOLDER,), {}, (F32,), line="first.py:1")
    graph = Graph((F32, (signed, 0), (signed, 1)), (2,), lines={2: "this.py:9"})
    assert [graph.line(slot) for slot in range(3)] == [None, "first.py:1", "this.py:9"]
    assert graph == Graph((F32, (signed, 0), (signed, 1)), (2,)), "lines are not part of the program"
    assert recorded_at(graph.entries, 1)[0] is signed
    with pytest.raises(InternalError):
        recorded_at(graph.entries, 0)


BUFFER = np.zeros(2, np.float32)
NONE = Inputs([], [], [], [], [], [])
ILLEGAL: dict[str, tuple[Graph, Inputs, str]] = {
    "no_buffer": (Graph((F32,), (0,)), NONE, "1 leaves get 0 buffers"),
    "wrong_buffer": (Graph((I64,), (0,)), Inputs([BUFFER], [], [], [], [], []), r"leaf 0 is i64\[3\], gets float32\[2\]"),
    "no_number": (Graph((FLOAT_INPUT,), (0,)), NONE, "1 numbers of ScalarKind.FLOAT get 0"),
    "later_slot": (Graph(((NEG, 1), (NEG, 0)), (1,)), NONE, "reads a later slot"),
    "missing_operand": (Graph((F32, (ADD, 0)), (1,)), Inputs([BUFFER], [], [], [], [], []), "has 2 places for 1 operands"),
    "result_of_nothing": (Graph((None,), (0,)), NONE, "slot 0 is a result of no operation"),
    "no_such_result": (Graph((F32,), (5,)), Inputs([BUFFER], [], [], [], [], []), "result slot 5 is not in the graph"),
    "dead_beyond": (Graph((F32,), (0,), (1,)), Inputs([BUFFER], [], [], [], [], []), "dead leaves"),
}


@pytest.mark.parametrize(("graph", "inputs", "message"), list(ILLEGAL.values()), ids=list(ILLEGAL))
def test_illegal_graphs_are_refused(graph: Graph, inputs: Inputs, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        verify(graph, inputs)
