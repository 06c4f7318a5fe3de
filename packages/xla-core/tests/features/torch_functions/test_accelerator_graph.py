"""`torch.accelerator.Graph` replays what was recorded on what its tensors hold by then, as eager CPU torch computes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import torch_xla
from xla_core.base import metrics

pytestmark = pytest.mark.skipif(not hasattr(torch.accelerator, "Graph"), reason="this torch has no torch.accelerator.Graph")


def graph(**options: Any) -> Any:
    return torch.accelerator.Graph(**options)


def batches(count: int) -> list[Tensor]:
    torch.manual_seed(7)
    return list(torch.randn(count, 4, 3))


def test_a_capture_runs_nothing_and_changes_nothing() -> None:
    x = torch.tensor([1.0, 2.0]).to("xla")
    state = torch.get_device_module("xla").get_rng_state()
    captured = graph()
    with captured:
        x += 1
        drawn = torch.rand(2, device="xla")
    assert x.tolist() == [1, 2] and torch.get_device_module("xla").get_rng_state().equal(state)
    captured.replay()
    captured.replay()
    assert x.tolist() == [3, 4] and 0 < drawn.min().item()
    assert isinstance(captured, torch.accelerator.Graph)


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, capturable=True)], ids=["sgd", "adam"]
)
def test_training(make: Any) -> None:
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).to("xla")
    model.load_state_dict(plain.state_dict())
    expected, optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), make(model.parameters())
    if isinstance(optimizer, torch.optim.Adam):
        expected = torch.optim.Adam(plain.parameters())

    def step(net: nn.Module, using: torch.optim.Optimizer, x: Tensor) -> Tensor:
        loss = net(x).square().mean()
        loss.backward()
        using.step()
        using.zero_grad(set_to_none=False)
        return loss.detach()

    first, *others = batches(6)
    x = first.to("xla")
    step(plain, expected, first)
    step(model, optimizer, x)  # warm-up: the state of the optimizer exists
    captured = graph()
    with captured:
        loss = step(model, optimizer, x)
    compiled: list[metrics.CompileEvent] = []
    for number, batch in enumerate(others):
        x.copy_(batch)
        if number == 2:
            stop = metrics.subscribe(compiled.append, metrics.CompileEvent)
        captured.replay()
        torch.testing.assert_close(loss.cpu(), step(plain, expected, batch))
    stop()
    assert not compiled
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach())


def test_tensors_that_share_a_value_are_told_apart() -> None:
    data = torch.tensor([1.0, 2.0]).to("xla")
    x = data.clone()
    captured = graph()
    with captured:
        y = x * 10
    x.fill_(3.0)
    captured.replay()
    assert y.tolist() == [30, 30] and data.tolist() == [1, 2]


def test_views_copies_zeros_and_constants() -> None:
    x, target, taken = (torch.arange(4.0).to("xla") for _ in range(3))
    blank = torch.empty(4, device="xla")
    captured = graph()
    with captured:
        x[1:3].mul_(2)
        taken.copy_(target)
        sums = blank + x
        fresh = torch.zeros(2, device="xla")
        given = torch.tensor([5.0, 6.0]).to("xla")
        both = given + fresh
        x[0].zero_()
    blank.fill_(1.0)
    target.neg_()
    captured.replay()
    assert x.tolist() == [0, 2, 4, 3] and taken.tolist() == [0, -1, -2, -3] and sums.tolist() == [1, 3, 5, 4]
    assert fresh.tolist() == [0, 0] and given.tolist() == [5, 6] and both.tolist() == [5, 6]
    fresh.fill_(9.0)
    captured.replay()
    assert x.tolist() == [0, 4, 8, 3] and both.tolist() == [5, 6]


def test_random_numbers_are_drawn_anew() -> None:
    torch.manual_seed(5)
    captured = graph(keep_graph=True)
    with torch.Stream(), captured:
        drawn = torch.rand(3, device="xla")
    captured.instantiate()
    rows = []
    for _ in range(2):
        captured.replay()
        rows.append(drawn.tolist())
    torch.manual_seed(5)
    assert rows[0] != rows[1] and rows == [torch.rand(3, device="xla").tolist() for _ in range(2)]


LINES: list[Callable[[dict[str, Tensor]], object]] = [
    lambda names: names["a"].add_(names["b"]),
    lambda names: names["b"].mul_(0.5),
    lambda names: names["a"][1:].copy_(names["b"][:-1]),
    lambda names: names["c"].copy_(names["a"]),
    lambda names: names["a"].zero_(),
    lambda names: names["c"].add_(1),
    lambda names: names.update(c=names["a"] * names["b"]),
    lambda names: names.update(b=names["a"].clone()),
    lambda names: names.update(a=names["c"][:]),
]
QUARTERS = st.integers(-16, 16).map(lambda number: number / 4)  # exact in any order; XLA's CPU flushes subnormals to zero


@settings(max_examples=15)
@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=8), st.lists(QUARTERS, min_size=1, max_size=3))
def test_any_lines(lines: list[Callable[[dict[str, Tensor]], object]], fills: list[float]) -> None:
    inputs = {name: torch.arange(1.0, 4.0) * (number + 1) for number, name in enumerate("abc")}
    memory = {name: tensor.to("xla") for name, tensor in inputs.items()}
    bound = dict(memory)  # lines may bind a name to another tensor
    captured = graph()
    with captured:
        for line in lines:
            line(bound)
    for fill in fills:
        for name in "abc":
            inputs[name].fill_(fill)
            memory[name].fill_(fill)
        expected = dict(inputs)
        for line in lines:
            line(expected)
        captured.replay()
        for name in "abc":
            assert memory[name].cpu().equal(inputs[name]) and bound[name].cpu().equal(expected[name])


def test_what_is_refused(tmp_path: Path) -> None:
    x = torch.ones(2, device="xla")
    captured = graph()
    for call in (captured.replay, captured.instantiate):
        with pytest.raises(RuntimeError, match="nothing was captured"):
            call()
    with pytest.raises(RuntimeError, match="capture_begin was not called"):
        captured.capture_end()
    with pytest.raises(RuntimeError, match="a value was read, or a step ended"), captured:
        (x + 1).tolist()
    with pytest.raises(RuntimeError, match="a value was read, or a step ended"), captured:
        y = x + 1
        torch_xla.sync()
    with captured, pytest.raises(RuntimeError, match="is captured already"):
        graph().capture_begin()
    assert (x + 1).tolist() == [2, 2]
    with captured:
        y = x * 2
    with pytest.raises(RuntimeError, match="enable_debug_mode"):
        captured.debug_dump(str(tmp_path / "dump.txt"))
    captured.enable_debug_mode()
    captured.debug_dump(str(tmp_path / "dump.txt"))
    assert "aten.mul" in (tmp_path / "dump.txt").read_text()
    x.data = torch.ones(3, device="xla")
    captured.replay()  # x shows other memory by now
    assert y.tolist() == [2, 2]
    captured.reset()
    with pytest.raises(RuntimeError, match="nothing was captured"):
        captured.replay()
    assert graph(pool=(0, 4)).pool() == (0, 4)
