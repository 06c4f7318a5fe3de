"""Turns of loops on a pending graph: how long they are, where they are cut, and what is none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_xla
from xla_core.engine.graph.loop import Loop
from xla_core.engine.graph.loop_search import find_loop, repeating_end
from xla_core.engine.graph.selection import keep_live
from xla_core.engine.runtime.client import current_recorder


def longest_repeating_end(items: Sequence[int]) -> tuple[int, int] | None:
    """The same by trying everything."""
    count = len(items)
    for begin in range(count):
        for period in range(1, (count - begin) // 2 + 1):
            if all(items[place] == items[place + period] for place in range(begin, count - period)):
                return begin, period
    return None


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(0, 4))
def test_the_repeating_end_of_any_sequence(head: list[int], turn: list[int], times: int) -> None:
    items = head + turn * times + turn[:1]
    assert repeating_end(items) == longest_repeating_end(items)


def recorded(layers: bool = False) -> Loop | None:
    """The loop that is found in what is live now."""
    pending_graph = current_recorder().pending_graph
    keep_live(pending_graph)
    return find_loop(pending_graph, layers)


def test_a_training_loop_is_cut_after_the_optimizer() -> None:
    torch_xla.sync()
    weight = torch.randn(16, 16, device="xla", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, foreach=False)
    x = torch.randn(64, 16, device="xla")
    torch_xla.sync()
    for _ in range(6):
        optimizer.zero_grad()
        (x @ weight).exp().sum().backward()
        optimizer.step()
    found = recorded()
    assert found is not None and found.turns >= 4
    pending_graph = current_recorder().pending_graph
    names = [entry[0].name for entry in pending_graph.entries if type(entry) is tuple]
    turn = names[found.head : found.head + found.length]
    assert turn == names[found.head + found.length : found.head + 2 * found.length]
    assert names.count(turn[0]) < 3 * found.turns and found.last.name == turn[-1] == "aten.add_.Tensor", "weight.add_(buffer, alpha=-lr)"
    assert turn[0] == "aten.mm"
    torch_xla.sync()


def test_several_turns_count_as_one() -> None:
    torch_xla.sync()
    state = torch.zeros(4, device="xla")
    for number in range(50):
        state = state * 0.5 + number
    found = recorded()
    assert found is not None and (found.length, found.times) == (2, 1)
    assert found.head + 2 * found.turns in (100, 101)
    four = found.by(4)
    assert (four.head, four.length, four.times, four.size, four.turns) == (found.head, 8, 4, 4 * found.size, found.turns // 4)
    torch_xla.sync()


def test_layers_of_a_model_are_no_turns() -> None:
    torch_xla.sync()
    layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()) for _ in range(12)]).to("xla")
    torch_xla.sync()
    with torch.no_grad():
        shown = layers(torch.ones(2, 8, device="xla"))
    assert recorded() is None
    assert recorded(layers=True) is not None
    torch_xla.sync()
    gradients = torch.autograd.grad(layers(shown.detach()).sum(), list(layers.parameters()))
    assert recorded() is None, "the backward pass of each layer takes what its forward pass has left"
    torch_xla.sync()
    del gradients


def test_what_does_not_repeat_is_no_loop() -> None:
    torch_xla.sync()
    state = torch.zeros(4, device="xla")
    for number in range(1, 20):
        state = torch.cat([state, torch.ones(number, device="xla")])
    assert recorded() is None
    torch_xla.sync()


def test_a_loop_before_what_reads_its_result() -> None:
    torch_xla.sync()
    rows, taken = torch.randn(40, 4, device="xla"), torch.zeros(40, 4, device="xla")
    torch_xla.sync()
    for row in range(40):
        taken[39 - row] = rows[row] * 2
    difference = (taken.flip(0) - rows * 2).abs().max()
    found = recorded()
    assert found is not None and found.turns >= 35 and found.length == 3, "a view, a product and a write"
    assert difference.item() == 0
