"""Random operations draw from the device's own state, which enters programs as an input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.core.xla_model as xm

Tensor = torch.Tensor
Counts = Any
DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(1000, device="xla"),
    "randn": lambda: torch.randn(1000, device="xla"),
    "randint": lambda: torch.randint(0, 10**6, (1000,), device="xla"),
    "randperm": lambda: torch.randperm(1000, device="xla"),
    "rand_like": lambda: torch.rand_like(torch.zeros(1000, device="xla")),
    "uniform_": lambda: torch.zeros(1000, device="xla").uniform_(-3, 5),
    "normal_": lambda: torch.zeros(1000, device="xla").normal_(2, 3),
    "normal": lambda: torch.normal(torch.zeros(1000, device="xla"), 2.0),
    "bernoulli": lambda: torch.bernoulli(torch.full((1000,), 0.5, device="xla")),
    "exponential_": lambda: torch.zeros(1000, device="xla").exponential_(2.0),
    "multinomial": lambda: torch.multinomial(torch.ones(10, device="xla"), 1000, replacement=True),
    "dropout": lambda: F.dropout(torch.ones(1000, device="xla"), 0.5),
}
each_draw = pytest.mark.parametrize("draw", list(DRAWS.values()), ids=list(DRAWS))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Every test starts at a step and leaves the CPU's own state alone."""
    torch_xla.sync()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        yield


@each_draw
def test_same_seed_same_program_same_numbers(draw: Callable[[], Tensor]) -> None:
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        first, second = draw(), draw()
        torch_xla.sync()
        third = draw()
        runs.append([first.tolist(), second.tolist(), third.tolist()])
    assert runs[0] == runs[1]
    assert all(mine != theirs for mine, theirs in zip(runs[0], runs[2], strict=True))
    assert runs[0][0] != runs[0][1] != runs[0][2]


@each_draw
def test_the_cpu_generator_is_not_touched(draw: Callable[[], Tensor]) -> None:
    before = torch.get_rng_state()
    draw().tolist()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)  # the CPU's draws do not move the device either
    torch.manual_seed(3)
    expected = draw().tolist()
    torch.manual_seed(3)
    torch.rand(5)
    assert draw().tolist() == expected


def test_numbers_are_spread_as_they_should() -> None:
    uniform = torch.rand(20000, device="xla").cpu()
    assert 0 <= uniform.min() and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02 and abs(uniform.var() - 1 / 12) < 0.01
    normal = torch.randn(20000, device="xla", dtype=torch.float64).cpu()
    assert abs(normal.mean()) < 0.05 and abs(normal.var() - 1) < 0.05
    assert sorted(torch.randperm(100, device="xla").tolist()) == list(range(100))
    kept = F.dropout(torch.ones(20000, device="xla"), 0.25).cpu()
    torch.testing.assert_close(kept.unique(), torch.tensor([0.0, 4 / 3]))
    assert abs((kept == 0).float().mean() - 0.25) < 0.02


def test_a_loop_with_dropout_compiles_once(counts: Counts) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)).to("xla")
    data = torch.ones(4, 8, device="xla")
    torch_xla.sync()
    counts.restart()
    losses = []
    for _ in range(5):
        loss = model(data).sum()
        torch_xla.sync()
        losses.append(loss.item())
    assert counts.UncachedCompile == 1
    assert len(set(losses)) == 5


def test_reading_between_draws_changes_nothing() -> None:
    torch.manual_seed(1)
    first, second = torch.rand(3, device="xla"), torch.rand(3, device="xla")
    together = (first.tolist(), second.tolist())
    torch.manual_seed(1)
    first = torch.rand(3, device="xla")
    alone = first.tolist()
    second = torch.rand(3, device="xla")
    assert together == (alone, second.tolist())


def test_a_value_once_drawn_stays() -> None:
    drawn = torch.rand(4, device="xla")
    double = drawn * 2
    torch.testing.assert_close(double.cpu(), drawn.cpu() * 2, rtol=0, atol=0)
    twin = copy.deepcopy(drawn)
    torch_xla.sync()
    assert twin.tolist() == drawn.tolist()


def test_the_state_can_be_saved_and_restored() -> None:
    torch.rand(2, device="xla")
    state, number = torch.xla.get_rng_state(), xm.get_rng_state()  # type: ignore[attr-defined]
    expected = torch.rand(3, device="xla").tolist()
    torch.xla.set_rng_state(state)  # type: ignore[attr-defined]
    assert torch.rand(3, device="xla").tolist() == expected
    xm.set_rng_state(number)
    assert torch.rand(3, device="xla").tolist() == expected
    with torch.random.fork_rng(devices=[0], device_type="xla"):
        inside = torch.rand(3, device="xla").tolist()
    assert torch.rand(3, device="xla").tolist() == inside


class Block(nn.Module):
    """Something with dropout between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.drop(self.first(x).relu()))
        return result


@pytest.mark.parametrize("use_reentrant", [True, False], ids=["reentrant", "not_reentrant"])
@pytest.mark.parametrize("synced", [True, False], ids=["synced", "pending"])
def test_checkpointing_repeats_the_same_numbers(use_reentrant: bool, synced: bool) -> None:
    torch.manual_seed(0)
    block = Block().to("xla")
    results = []
    for checkpointed in (False, True):
        torch_xla.sync()
        torch.manual_seed(42)
        x = torch.linspace(-1, 1, 12, device="xla").view(2, 6).requires_grad_()
        block.zero_grad()
        out = checkpoint(block, x, use_reentrant=use_reentrant) if checkpointed else block(x)
        if synced:
            torch_xla.sync()
        (out * out).sum().backward()
        assert x.grad is not None
        results.append([out.detach().cpu(), x.grad.cpu(), *(each.grad.cpu() for each in block.parameters() if each.grad is not None)])
    assert len(results[0]) == 6
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "drop", [nn.Dropout2d(), nn.Dropout3d(), nn.AlphaDropout(), nn.FeatureAlphaDropout()], ids=lambda drop: type(drop).__name__
)
def test_dropout_with_its_default_probability(drop: nn.Module) -> None:
    """torch leaves a probability of 0.5 out of the call, because that is the default of `bernoulli_`."""
    shape = (2, 64, 3, 3) if isinstance(drop, nn.Dropout2d) else (2, 64, 3, 3, 3)
    out = drop(torch.ones(shape, device="xla"))
    assert 0.2 < (out == out.max()).float().mean().item() < 0.8


def test_generators_of_other_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'xla' device type for generator but found 'cpu'"):
        torch.rand(2, device="xla", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="generator"):
        torch.zeros(2, device="xla").normal_(generator=torch.Generator())


def test_initialisation_of_modules_on_the_device_is_reproducible() -> None:
    made = []
    for _ in range(2):
        torch.manual_seed(11)
        layer = nn.Linear(5, 7, device="xla")
        nn.init.kaiming_normal_(layer.weight)
        made.append((layer.weight.tolist(), layer.bias.tolist()))
        torch_xla.sync()
    assert made[0] == made[1]


def test_every_device_has_its_own_state(run: Callable[..., str]) -> None:
    output = run(
        """
        import torch, torch_xla
        import torch_xla.core.xla_model as xm
        torch.manual_seed(5)
        a = torch.rand(3, device="xla:0").tolist()
        torch.rand(3, device="xla:0")
        b = torch.rand(3, device="xla:1").tolist()
        torch.manual_seed(5)
        print(a == torch.rand(3, device="xla:0").tolist(), b == torch.rand(3, device="xla:1").tolist())
        xm.set_rng_state(9, device="xla:1")
        print(xm.get_rng_state("xla:1"), xm.get_rng_state("xla:0") != 9)
        """,
        CPU_NUM_DEVICES="2",
    )
    assert output.splitlines() == ["True True", "9 True"]


def test_a_random_state_with_an_offset_is_another_one() -> None:
    """As torch's DTensors make one for each shard."""
    torch.manual_seed(3)
    state = torch.xla.get_rng_state()
    drawn = []
    for offset in (0, 8, 16, 8):
        moved = state.clone()
        moved[8:] = torch.tensor([offset]).view(torch.uint8)
        torch.xla.set_rng_state(moved)
        drawn.append(tuple(torch.rand(4, device="xla").tolist()))
    assert len(set(drawn)) == 3 and drawn[1] == drawn[3]
    torch.xla.set_rng_state(state[:8])  # as files from before have it
    assert tuple(torch.rand(4, device="xla").tolist()) == drawn[0] and torch.equal(state[8:], torch.zeros(8, dtype=torch.uint8))


OF_ALL_SIZES: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(3, 4, device="xla"),
    "double": lambda: torch.randn(5, device="xla", dtype=torch.float64),
    "complex": lambda: torch.randn(4, device="xla", dtype=torch.complex64),
    "scalar": lambda: torch.rand((), device="xla", dtype=torch.bfloat16),
    "empty": lambda: torch.rand(0, 3, device="xla"),
    "at the limit": lambda: torch.rand(64, 64, device="xla"),
    "larger": lambda: torch.empty(70, 70, device="xla").uniform_(-1, 2),
    "as large": lambda: torch.rand(3, 41, 53, device="xla"),
    "largest": lambda: torch.rand(300, 300, device="xla"),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(9, device="xla")),
    "permutation": lambda: torch.randperm(7, device="xla"),
    "integers": lambda: torch.randint(0, 10, (4,), device="xla"),
    "truth": lambda: torch.ones(4, device="xla").bernoulli_(0.3),
    "choices": lambda: torch.multinomial(torch.ones(5, device="xla"), 2),
}


@pytest.mark.parametrize("name", OF_ALL_SIZES)
def test_an_operation_draws_the_same_alone_and_beside_others(name: str) -> None:
    def drawn() -> dict[str, Tensor]:
        torch.manual_seed(3)
        return {each: draw() for each, draw in OF_ALL_SIZES.items()}

    together = drawn()
    torch_xla.sync()
    alone = drawn()[name]  # nobody holds the others, and no program computes them
    assert torch.equal(alone.cpu(), together[name].cpu())


def test_small_draws_of_a_program_share_a_cipher() -> None:
    torch_xla.sync()
    one, many = (
        torch_xla._XLAC._get_xla_tensors_hlo([torch.rand(count, device="xla") for count in range(1, sizes)]).count("shift-left(")
        for sizes in (2, 40)
    )
    assert one == many == 20
