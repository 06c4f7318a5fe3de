"""Programs that never sync: what is pending stays bounded, programs stay small, values are as on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from xla_core.base import config, metrics
from xla_core.base.errors import LoweringError
from xla_core.base.metrics import Cause, CompileEvent
from xla_core.engine.runtime import faults, turns, uploads
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.executor import wait_all

Counts = Any
LIMIT = 400


@pytest.fixture(autouse=True)
def small_limit() -> Iterator[None]:
    """A limit that loops of a test reach; nothing is said about it."""
    torch_xla.sync()
    recorder = current_recorder()
    with config.override(config.MAX_PENDING, LIMIT), pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "_announced", True)
        recorder.allow(LIMIT)
        yield
        torch_xla.sync()
    recorder.allow(turns.limit())


@pytest.fixture
def compiled() -> Iterator[list[CompileEvent]]:
    """What was compiled in the test."""
    found: list[CompileEvent] = []
    stop = metrics.subscribe(found.append, CompileEvent)  # type: ignore[arg-type]
    yield found
    stop()


def entries() -> int:
    return len(current_recorder().pending_graph.entries)


EachTurn = Callable[[int, torch.Tensor], None]


def train(device: str, turns: int, each_turn: EachTurn = lambda number, loss: None, width: int = 9) -> list[torch.Tensor]:
    """Parameters after a training loop without syncs."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, 3))
    x, y = torch.randn(5, 7), torch.randn(5, 3)
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number in range(turns):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        each_turn(number, loss)
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_a_training_loop_without_a_sync(compiled: list[CompileEvent]) -> None:
    known: list[int] = []
    longest = 0

    def look(number: int, loss: torch.Tensor) -> None:
        nonlocal longest
        longest = max(longest, entries())
        if number in (40, 119):
            known.append(len(compiled))

    torch.testing.assert_close(train("xla", 120, look), train("cpu", 120), rtol=1e-4, atol=1e-5)
    assert longest < 2 * LIMIT
    assert known[0] == known[1], "one program for all later turns"
    assert all(event.cause is Cause.PENDING_LIMIT for event in compiled[:-1])
    assert max(event.num_nodes for event in compiled) < 200


def test_a_training_loop_that_reads_every_ten_turns(compiled: list[CompileEvent]) -> None:
    losses: dict[str, list[float]] = {"xla": [], "cpu": []}
    known: list[int] = []

    def read(device: str) -> Callable[[int, torch.Tensor], None]:
        def each_turn(number: int, loss: torch.Tensor) -> None:
            if number % 10 == 9:
                losses[device].append(loss.item())
                known.append(len(compiled))

        return each_turn

    torch.testing.assert_close(train("xla", 100, read("xla"), 10), train("cpu", 100, read("cpu"), 10), rtol=1e-4, atol=1e-5)
    assert losses["xla"] == pytest.approx(losses["cpu"], rel=1e-4)
    assert known[3] == known[9]
    assert max(event.num_nodes for event in compiled) < 200


def test_many_writes_and_one_read(compiled: list[CompileEvent]) -> None:
    def written(device: str) -> torch.Tensor:
        state = torch.zeros(37, 2, device=device)
        for number in range(1000):
            state[number % 37, 1] += number
        return state.cpu()

    assert torch.equal(written("xla"), written("cpu"))
    assert max(event.num_nodes for event in compiled) < LIMIT


def test_what_nobody_needs_is_dropped_and_not_run(counts: Counts) -> None:
    start = torch.ones(6, device="xla") + 1
    longest = 0
    for _ in range(500):
        _ = (start * 2).exp()
        longest = max(longest, entries())
    assert longest <= LIMIT + 1
    assert counts.ExecuteComputation == 0
    assert start.tolist() == [2.0] * 6


def test_what_does_not_repeat_runs_as_a_whole() -> None:
    def grown(device: str) -> torch.Tensor:
        state = torch.ones(1, device=device)
        for number in range(1, 4 * LIMIT):
            state = state.roll(1, 0) if number * number % 7 == 2 else torch.cat([state[-50:] * 0.5, state.new_ones(number % 11)])
        return state.cpu()

    torch.testing.assert_close(grown("xla"), grown("cpu"))


def test_wrong_data_is_told_in_a_loop_that_never_syncs_or_reads() -> None:
    table, rows = torch.randn(19, 3).to("xla"), torch.tensor([0, 4, 2]).to("xla")
    device = current_recorder()
    total = torch.zeros(3, 3, device="xla")
    most = 0
    for _ in range(2000):
        total = total * 0.9 + nn.functional.embedding(rows, table)
        most = max(most, len(faults._unread.get(device.index, ())))
    assert most < 20, "the words of programs that have run are not kept"
    wrong = torch.tensor([0, 19, 2]).to("xla")
    with pytest.raises(IndexError, match="19"):
        for _ in range(2000):
            total = total * 0.9 + nn.functional.embedding(wrong, table)


def test_it_is_announced_once_with_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_announced", False)
    with pytest.warns(RuntimeWarning, match=r"a loop without torch_xla.sync\(\) has left .* at .*test_pending_limit.py:\d+") as seen:
        train("xla", 60)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train("xla", 60)


def test_a_sync_ends_the_expectation_of_further_turns() -> None:
    train("xla", 60)
    assert current_recorder().loop is not None
    torch_xla.sync()
    assert current_recorder().loop is None and current_recorder().pending_graph.limit == LIMIT


def test_a_program_that_leaves_the_loop_goes_on() -> None:
    def mixed(device: str) -> torch.Tensor:
        state = torch.zeros(3, device=device)
        for epoch in range(4):
            for _ in range(150):
                state = state * 0.99 + 1
            for number in range(60):
                state = state.sin() - number if epoch % 2 else state.cos() * 0.5
        return state.cpu()

    torch.testing.assert_close(mixed("xla"), mixed("cpu"), rtol=1e-4, atol=1e-5)


def test_layers_that_are_read_run_as_one_program(counts: Counts) -> None:
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(8)]).to("xla")
    torch_xla.sync()
    counts.restart()
    with torch.no_grad():
        assert layers(torch.ones(2, 4, device="xla")).sum().item() >= 0
    assert counts.ExecuteComputation == 1


def test_an_operation_at_fault_is_named_and_the_loop_goes_on(custom_op: Callable[..., Any]) -> None:
    def refuse(context: Any, x: Any) -> Any:
        raise ValueError("refused")

    bad = custom_op("refused_in_a_loop(Tensor x) -> Tensor", lambda x: x.clone(), refuse)
    state = torch.zeros(3, device="xla")
    wrong = bad(state)
    with pytest.raises(LoweringError, match=r"test_pending_limit\.py:\d+"):
        for _ in range(4 * LIMIT):
            state = state * 0.5 + 1
    for _ in range(LIMIT):
        state = state * 0.5 + 1
    assert state.tolist() == [2.0] * 3
    with pytest.raises(LoweringError, match="refused"):
        wrong.cpu()


def test_operations_that_act_on_others_are_not_cut_off(custom_op: Callable[..., Any], counts: Counts) -> None:
    told = custom_op("tells_others(Tensor x) -> Tensor", lambda x: x.clone(), lambda context, x: x, has_side_effects=True)
    state = torch.zeros(3, device="xla")
    for _ in range(2 * LIMIT):
        state = told(state) + 1
    assert counts.ExecuteComputation == 0
    torch_xla.sync()
    assert counts.ExecuteComputation == 1
    assert state.tolist() == [2.0 * LIMIT] * 3


def test_a_region_that_is_to_be_one_program_is_not_cut(counts: Counts) -> None:
    state = torch.zeros(3, device="xla")

    @torch_xla.compile(full_graph=True)  # type: ignore[untyped-decorator]
    def region() -> None:
        nonlocal state
        for _ in range(2 * LIMIT):
            state = state + 1

    torch_xla.sync()
    counts.restart()
    region()
    wait_all()
    assert counts.ExecuteComputation == 1
    assert state.tolist() == [2.0 * LIMIT] * 3


def part_of_memory(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(uploads, "_part", lambda recorder: nbytes)


def fitted(device: str, steps: int, most: Callable[[], None] = lambda: None) -> torch.Tensor:
    """A weight after steps of gradient descent without a sync, each over 4,000 bytes that it moves to the device."""
    weight = torch.zeros(10, device=device, requires_grad=True)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(100, 10, generator=generator).to(device)
        ((x @ weight - 1) ** 2).mean().backward()
        most()
        with torch.no_grad():
            weight -= 0.1 * weight.grad  # type: ignore[operator]
            weight.grad = None
    return weight.detach().cpu()


def test_inputs_of_a_loop_without_a_sync_are_not_all_held(compiled: list[CompileEvent], monkeypatch: pytest.MonkeyPatch) -> None:
    part_of_memory(monkeypatch, 20_000)
    most = 0

    def look() -> None:
        nonlocal most
        most = max(most, sum(data.nbytes for data in current_recorder().pending_graph.input_data.values() if hasattr(data, "nbytes")))

    torch.testing.assert_close(fitted("xla", 60, look), fitted("cpu", 60), rtol=1e-4, atol=1e-5)
    assert most < 30_000
    assert len(compiled) <= 4


def test_inputs_of_an_evaluation_are_not_all_held(monkeypatch: pytest.MonkeyPatch) -> None:
    part_of_memory(monkeypatch, 20_000)
    model = nn.Linear(10, 3)

    def evaluated(device: str) -> tuple[torch.Tensor, int]:
        model.to(device)
        generator = torch.Generator().manual_seed(1)
        right, most = torch.zeros((), device=device, dtype=torch.int64), 0
        with torch.no_grad():
            for _ in range(100):
                x, y = torch.randn(100, 10, generator=generator), torch.randint(3, (100,), generator=generator)
                right += (model(x.to(device)).argmax(1) == y.to(device)).sum()
                most = max(most, entries())
        return right.cpu(), most

    (right, most), (expected, _) = evaluated("xla"), evaluated("cpu")
    assert torch.equal(right, expected)
    assert most < 40 * 8, "40 turns of about 8 entries"


def test_a_model_that_fills_the_memory_is_moved_in_whole(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    part_of_memory(monkeypatch, 1000)
    layers = nn.Sequential(*[nn.Linear(20, 20) for _ in range(10)]).to("xla")
    with torch.no_grad():
        result = layers(torch.ones(2, 20, device="xla"))
    assert counts.ExecuteComputation == 0
    torch_xla.sync()
    assert counts.ExecuteComputation == 1
    assert result.shape == (2, 20)


def test_a_region_that_is_to_be_one_program_holds_its_inputs(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    part_of_memory(monkeypatch, 20_000)

    @torch_xla.compile(full_graph=True)  # type: ignore[untyped-decorator]
    def region() -> torch.Tensor:
        total = torch.zeros(10, device="xla")
        for number in range(60):
            total = total + torch.full((100, 10), number, device="cpu").to("xla").sum(0)
        return total

    torch_xla.sync()
    counts.restart()
    total = region()
    wait_all()
    assert counts.ExecuteComputation == 1
    assert total.tolist() == [100.0 * sum(range(60))] * 10


def test_no_limit(counts: Counts) -> None:
    with config.override(config.MAX_PENDING, 0):
        current_recorder().allow(turns.limit())
        state = torch.zeros(3, device="xla")
        for _ in range(3 * LIMIT):
            state = state + 1
        assert entries() > 3 * LIMIT
        assert counts.ExecuteComputation == 0
        torch_xla.sync()
