"""Saved programs read back: texts written by hand, texts of real programs, and texts that are none."""

from __future__ import annotations

import pytest
import torch

from xla_core.abi.graph import graph_of
from xla_core.abi.texts import graph_text
from xla_debug.graphs.graph_text import GraphTextError, Node, NodeKind, parse

BY_HAND = """\
%0 = input : f32[2,3]
%1 = number : i64[]
%2 = aten.add.Tensor(%0, %0, alpha=%1) : f32[2,3]  # /home/me/a (b) : c/train.py:17
%3 = aten.max.dim(%2, -1, 'a %9) : f32[2]') : 2 results
%4 = result : f32[2]
%5 = result : i64[2]
%6 = aten.cat([%4, %0]) : f32[2] on each device
%7 = xla.read.expand[(3, [1])].unsqueeze[1](%6) : f32[]
return %7, %5
"""


def test_a_text_is_read_line_by_line() -> None:
    graph = parse(BY_HAND)
    assert graph.results == (7, 5)
    assert graph.nodes == (
        Node(0, NodeKind.INPUT, "input", "input", "f32[2,3]"),
        Node(1, NodeKind.NUMBER, "number", "number", "i64[]"),
        Node(
            2,
            NodeKind.OPERATION,
            "aten.add.Tensor",
            "aten.add.Tensor(%0, %0, alpha=%1)",
            "f32[2,3]",
            (0, 0, 1),
            "/home/me/a (b) : c/train.py:17",
        ),
        Node(3, NodeKind.OPERATION, "aten.max.dim", "aten.max.dim(%2, -1, 'a %9) : f32[2]')", "2 results", (2,)),
        Node(4, NodeKind.RESULT, "result", "result", "f32[2]", (3,)),
        Node(5, NodeKind.RESULT, "result", "result", "i64[2]", (3,)),
        Node(6, NodeKind.OPERATION, "aten.cat", "aten.cat([%4, %0])", "f32[2] on each device", (4, 0)),
        Node(7, NodeKind.OPERATION, "xla.read.expand[(3, [1])].unsqueeze[1]", "xla.read.expand[(3, [1])].unsqueeze[1](%6)", "f32[]", (6,)),
    )


def test_a_training_step_is_read_as_the_core_knows_it() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.GELU(), torch.nn.LayerNorm(8)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(3, 4, device="xla")
    model(x).max(dim=1).values.sum().backward()
    optimizer.step()
    pending = graph_of(list(model.parameters()))
    graph = parse(graph_text(pending))
    assert graph.results == pending.outs
    read = {node.slot: (node.name, set(node.operands), node.line) for node in graph.nodes if node.kind is NodeKind.OPERATION}
    assert read == {known.slot: (known.name, set(known.operands), known.line) for known in pending.operations()}
    assert [(node.slot, node.shape) for node in graph.nodes if node.kind is NodeKind.INPUT] == [
        (known.slot, known.text) for known in pending.inputs()
    ]
    assert len(read) > 20


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty text"),
        (BY_HAND.partition("return")[0], "cut off"),
        ("hello\nreturn %0", "line 1 .* '%0 = '"),
        ("%1 = input : f32[2]\nreturn %1", "line 1 .* '%0 = '"),
        ("%0 = aten.relu(%0) : f32[2]\nreturn %0", "takes %0, which is not above it"),
        ("%0 = aten.relu( : f32[2]\nreturn %0", "line 1"),
        ("%0 = result : f32[2]\nreturn %0", "no operation stands above"),
        ("%0 = input : f32[2]\n%1 = result : f32[2]\nreturn %1", "no operation stands above"),
        ("%0 = input : f32[2]\nreturn %3", "returns %3, but the graph has only 1"),
    ],
)
def test_what_is_no_program_is_refused_with_its_line(text: str, words: str) -> None:
    with pytest.raises(GraphTextError, match=words):
        parse(text)


def test_a_program_that_returns_nothing() -> None:
    assert parse("return ").nodes == ()
