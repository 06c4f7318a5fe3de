"""The printed form of programs, and their digests: the same in every process, different for different programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torch_xla
from xla_core.base.private_torch import torch_version
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.text import graph_hash, graph_text
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.sync import step_program

Tensor = torch.Tensor
Run = Callable[..., str]


def start(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A leaf."""
    return torch.zeros(shape, dtype=dtype).to("xla")


def recorded(make: Callable[[], Any]) -> Graph:
    """The program of everything that `make` returns."""
    torch_xla.sync()
    kept = make()
    program = step_program(current_recorder().pending_graph)
    assert program is not None
    torch_xla.sync()
    del kept
    return program.graph


def pointwise() -> Any:
    x = start(2, 3)
    return x, torch.add(x, x * 2.0, alpha=3).relu()


def views() -> Any:
    x = start(7, 11)  # a shape that no other test has: views of one layout share the steps that came first
    x.t()[1].mul_(x[0, 1])
    return (x,)


def several() -> Any:
    x = start(4)
    values, places = x.sort(descending=True)
    return x, places, values + x.max()


def mixed() -> Any:
    x = start(3, dtype=torch.int64)
    return x, (x + torch.tensor(2.5)).to(torch.bfloat16), torch.cat([x, x]).clamp(min=1)


def training() -> Any:
    weight = start(2, 3).requires_grad_()
    F.linear(start(4, 3), weight).sum().backward()
    return weight, weight.grad


def drawing() -> Any:
    return (F.dropout(start(5), 0.5),)


GOLDEN: dict[str, tuple[Callable[[], Any], str]] = {
    "pointwise": (
        pointwise,
        """
        %0 = input : f32[2,3]
        %1 = constant : f64
        %2 = aten.mul.Tensor(%0, %1) : f32[2,3]
        %3 = constant : i64
        %4 = aten.add.Tensor(%0, %2, alpha=%3) : f32[2,3]
        %5 = aten.relu(%4) : f32[2,3]
        return %5
        """,
    ),
    "views": (
        views,
        """
        %0 = input : f32[7,11]
        %1 = constant : i64
        %2 = xla.read.t[].select.int[0](%0, %1) : f32[7]
        %3 = constant : i64
        %4 = constant : i64
        %5 = xla.read.select.int[1].select.int[0](%0, %3, %4) : f32[]
        %6 = aten.mul_.Tensor(%2, %5) : f32[7]
        %7 = constant : i64
        %8 = xla.write.t[].select.int[0](%0, %6, %7) : f32[7,11]
        return %8
        """,
    ),
    "several": (
        several,
        """
        %0 = input : f32[4]
        %1 = aten.sort(%0, -1, True) : 2 results
        %2 = result : f32[4]
        %3 = result : i64[4]
        %4 = aten.max(%0) : f32[]
        %5 = aten.add.Tensor(%2, %4) : f32[4]
        return %3, %5
        """,
    ),
    "mixed": (
        mixed,
        """
        %0 = input : i64[3]
        %1 = number : f32[]
        %2 = aten.add.Tensor(%0, %1) : f32[3]
        %3 = aten._to_copy(%2, dtype=torch.bfloat16) : bf16[3]
        %4 = aten.cat([%0, %0]) : i64[6]
        %5 = constant : i64
        %6 = aten.clamp(%4, %5) : i64[6]
        return %3, %6
        """,
    ),
    "training": (
        training,
        """
        %0 = input : f32[4,3]
        %1 = input : f32[2,3]
        %2 = aten.linear(%0, %1) : f32[4,2]
        %3 = aten.sum(%2) : f32[]
        %4 = aten.ones_like(%3) : f32[]
        %5 = xla.read.expand[(4, 2)](%4) : f32[4,2]
        %6 = aten.linear_backward(%0, %5, %1, [False, True, False]) : 3 results
        %7 = result : None
        %8 = result : f32[2,3]
        %9 = result : None
        return %8
        """,
    ),
}


def shown(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("make", "text"), list(GOLDEN.values()), ids=list(GOLDEN))
def test_golden_texts(make: Callable[[], Any], text: str) -> None:
    if make is training and torch_version < (2, 12):
        pytest.skip("linear is split on a torch before 2.12: its own test compares values and gradients")
    assert graph_text(recorded(make), lines=False).splitlines() == shown(text)


def test_a_seed_is_shown_as_one() -> None:
    text = graph_text(recorded(drawing), lines=False)
    assert "= number : seed" in text and re.search(r"seed=%\d+\)", text)


def test_lines_are_the_users() -> None:
    text = graph_text(recorded(lambda: start(7, 1).cos().unsqueeze(0).sin()))
    here = re.findall(r"# (.*):(\d+)$", text, re.M)
    assert {file.rpartition("/")[2] for file, _ in here} == {"test_text.py"} and len(here) == 3, "the view too"


def test_digests_tell_programs_apart_and_ignore_lines() -> None:
    graphs = [recorded(make) for make in (pointwise, views, several, mixed, training, drawing)]
    digests = [graph_hash(graph) for graph in graphs]
    assert len(set(digests)) == len(graphs)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    graph = graphs[0]
    assert graph_hash(graph) == graph_hash(Graph(graph.entries, graph.outs, graph.dead, {4: "elsewhere.py:3"}))
    others = [Graph(graph.entries, (2,), graph.dead), Graph(graph.entries, graph.outs, (0,))]
    assert len({graph_hash(each) for each in (graph, *others)} | {graph_hash(graph, "other settings"), graph_hash(graph, "settings")}) == 5


def test_digests_tell_constants_and_shapes_apart() -> None:
    makers: list[Callable[[], Any]] = [
        lambda: start(4, 4).sum(0),
        lambda: start(4, 4).sum(1),
        lambda: start(4, 5).sum(0),
        lambda: start(4, 4).sum(0, keepdim=True),
        lambda: start(4, 4, dtype=torch.float64).sum(0),
        lambda: start(4, 4)[1:3].exp(),
        lambda: start(4, 4)[1:2].exp(),
        lambda: start(4, 4)[0:3:2].exp(),
    ]
    digests = {graph_hash(recorded(make)) for make in makers}
    assert len(digests) == len(makers)


def test_digests_are_the_same_in_every_process(run: Run) -> None:
    code = """
        import torch, torch_xla
        from torch import nn
        from xla_core.engine.graph.text import graph_hash
        from xla_core.engine.runtime.client import current_recorder
        from xla_core.engine.runtime.sync import step_program
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5)).to("xla")
        torch_xla.sync()
        model(torch.ones(2, 3, device="xla"))[:, 1:].sum().backward()
        print(graph_hash(step_program(current_recorder().pending_graph).graph))
    """
    assert len({run(code, PYTHONHASHSEED=seed).strip() for seed in ("1", "2")}) == 1


def test_modules_print_every_operation() -> None:
    graph = recorded(lambda: nn.LSTMCell(3, 4).to("xla")(start(2, 3)))
    text = graph_text(graph, lines=False)
    assert len(text.splitlines()) == len(graph.entries) + 1
