"""Illegal graphs are named with the slot and the rule that they break; legal ones pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from xla_core.base.errors import InternalError
from xla_core.engine.compile.verify import verify
from xla_core.engine.graph.aval import aval_of
from xla_core.engine.graph.entries import FLOAT_INPUT, SEED, Entry
from xla_core.engine.graph.graph import Graph, Inputs
from xla_core.engine.graph.signature import PLACEHOLDER, Signature

LEAF = aval_of((3,), torch.float32)
BUFFER = np.zeros(3, np.float32)
ADD = Signature("test.add", lambda context, x, y: x + y, (PLACEHOLDER, PLACEHOLDER), {}, (LEAF,))
SPLIT = Signature("test.split", lambda context, x: (x, x), (PLACEHOLDER,), {}, (LEAF, LEAF))
DRAW = Signature("test.draw", lambda context: None, (), {}, (LEAF,), random=True)


def inputs(*buffers: Any, floats: int = 0, seeds: int = 0) -> Inputs:
    return Inputs(list(buffers), [0.0] * floats, [], [], [], [0] * seeds)


LEGAL: dict[str, tuple[tuple[Entry, ...], tuple[int, ...], Inputs]] = {
    "operation": ((LEAF, LEAF, (ADD, 0, 1)), (2,), inputs(BUFFER, BUFFER)),
    "several_results": ((LEAF, (SPLIT, 0), None, None, (ADD, 2, 3)), (4, 2), inputs(BUFFER)),
    "numbers": ((LEAF, FLOAT_INPUT, (ADD, 0, 1), SEED, (DRAW, 3)), (2, 4), inputs(BUFFER, floats=1, seeds=1)),
}
ILLEGAL: dict[str, tuple[tuple[Entry, ...], tuple[int, ...], tuple[int, ...], Inputs, str]] = {
    "too_few_buffers": ((LEAF, LEAF), (0,), (), inputs(BUFFER), "2 leaves get 1 buffers"),
    "another_shape": ((LEAF,), (0,), (), inputs(np.zeros(4, np.float32)), r"leaf 0 is f32\[3\], gets float32\[4\]"),
    "another_dtype": ((LEAF,), (0,), (), inputs(np.zeros(3, np.int32)), r"leaf 0 is f32\[3\], gets int32\[3\]"),
    "a_number_missing": ((FLOAT_INPUT,), (0,), (), inputs(), "1 numbers of .* get 0"),
    "a_later_slot": ((LEAF, (ADD, 0, 2), (ADD, 0, 0)), (2,), (), inputs(BUFFER), r"slot 1 \(test.add\) reads a later slot: \[0, 2\]"),
    "an_operand_missing": ((LEAF, (ADD, 0)), (1,), (), inputs(BUFFER), r"slot 1 \(test.add\) has 2 places for 1 operands"),
    "a_seed_missing": (((DRAW,),), (0,), (), inputs(), r"slot 0 \(test.draw\) has 1 places for 0 operands"),
    "a_result_of_nothing": ((LEAF, (ADD, 0, 0), None), (1,), (), inputs(BUFFER), "slot 2 is a result of no operation"),
    "a_result_outside": ((LEAF,), (1,), (), inputs(BUFFER), "result slot 1 is not in the graph"),
    "an_unknown_leaf_dead": ((LEAF,), (0,), (1,), inputs(BUFFER), r"dead leaves \(1,\) of 1"),
}


@pytest.mark.parametrize(("entries", "outs", "given"), list(LEGAL.values()), ids=list(LEGAL))
def test_legal_graphs_pass(entries: tuple[Entry, ...], outs: tuple[int, ...], given: Inputs) -> None:
    verify(Graph(entries, outs), given)


@pytest.mark.parametrize(("entries", "outs", "dead", "given", "message"), list(ILLEGAL.values()), ids=list(ILLEGAL))
def test_illegal_graphs_are_named(
    entries: tuple[Entry, ...], outs: tuple[int, ...], dead: tuple[int, ...], given: Inputs, message: str
) -> None:
    with pytest.raises(InternalError, match=message):
        verify(Graph(entries, outs, dead), given)
