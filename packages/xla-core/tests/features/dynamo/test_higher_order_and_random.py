"""Graphs with operators that take functions or operators, and random numbers that a backward graph draws again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch.utils.checkpoint import checkpoint

from xla_core.base import metrics
from xla_core.features.dynamo import random_states

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


def cost(function: Callable[[], Any]) -> tuple[Any, int]:
    before = metrics.counter("ExecuteComputation")
    result = function()
    return result, metrics.counter("ExecuteComputation") - before


@torch.compiler.nested_compile_region
def region(x: torch.Tensor) -> torch.Tensor:
    """A graph of its own."""
    return x.sin() * 2


OPERATORS: dict[str, tuple[Callable[[torch.Tensor], Any], int | None]] = {
    "checked": (lambda x: torch.linalg.inv(x @ x.t() + 3 * torch.eye(3, device=x.device)), 1),
    "branches": (lambda x: torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t - 1, (x,)), 1),
    "regions": (lambda x: region(region(x)), 1),
    "rows": (lambda x: map_rows(lambda row: row * 2 + 1, x), 1),
}
MODES: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "usual": contextlib.nullcontext,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("xla", torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OPERATORS)
def test_higher_order_operators_are_part_of_programs(name: str, mode: str) -> None:
    function, runs = OPERATORS[name]
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    wanted = torch.compile(function, backend="aot_eager")(X)
    tolerance = 5e-2 if mode == "autocast" else 1e-4
    x = X.to("xla")
    for _ in range(2):  # at its first run torch watches a graph by a mode
        with MODES[mode]():
            result, ran = cost(lambda: compiled(x))
        torch.testing.assert_close(result.float().cpu(), wanted, rtol=tolerance, atol=tolerance)
        assert ran == runs


def test_checks_of_matrices_are_part_of_programs() -> None:
    compiled = torch.compile(torch.linalg.inv, backend="openxla", fullgraph=True)
    compiled(torch.eye(3).to("xla"))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):  # type: ignore[attr-defined]
        compiled(torch.zeros(3, 3).to("xla")).cpu()


def test_what_is_printed_is_printed_at_each_call(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        doubled = x * 2
        torch._higher_order_ops.print("{} rows, first {first}", x.shape[0], first=doubled[0])
        return doubled + 1

    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    for number in (1.0, 2.0, 3.0):
        x = torch.full((2,), number)
        torch.testing.assert_close(compiled(x.to("xla")).cpu(), x * 2 + 1)
    assert capsys.readouterr().out.splitlines() == [f"2 rows, first {number}" for number in (2.0, 4.0, 6.0)]


def test_branches_that_draw_numbers_on_the_cpu() -> None:
    function = lambda x: torch.cond(x.sum() > 0, lambda t: t * torch.rand(()).to(t.device), lambda t: t - 1, (x,))  # noqa: E731
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    assert len({compiled(torch.ones(2).to("xla"))[0].item() for _ in range(3)}) == 3


@torch.library.custom_op("xla_core_tests::halved_", mutates_args=("a",), device_types="cpu")
def halved_(a: torch.Tensor) -> None:
    """Writes to its argument, and runs on the CPU only."""
    a.div_(2)


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning")
@pytest.mark.parametrize("whose", ["its own", "an input"])
def test_operators_that_write_to_their_arguments(whose: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        target = x + 1 if whose == "its own" else x
        halved_(target)
        return target * 3

    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    for turn in range(2):
        ours, theirs = (X + turn).to("xla"), X + turn
        torch.testing.assert_close(compiled(ours).cpu(), function(theirs))
        torch.testing.assert_close(ours.cpu(), theirs)


def dropped(x: torch.Tensor) -> torch.Tensor:
    """What a checkpoint computes: two masks."""
    return F.dropout(F.dropout(x.sin(), 0.5) * x, 0.25)


@pytest.mark.parametrize("captured", [True, False], ids=["programs", "recorded"])
def test_a_checkpoint_draws_its_random_numbers_again(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: checkpoint(dropped, x, use_reentrant=False), backend="openxla", fullgraph=True)
    if not captured:  # as where a graph is no program
        monkeypatch.setattr("xla_core.features.dynamo.bridge.CompiledGraph.program", lambda graph, args, tensors: graph._model)
    masks = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        x = torch.full((200,), 0.5).to("xla").requires_grad_()
        result, forward = cost(lambda x=x: compiled(x))  # type: ignore[misc]
        _, backward = cost(lambda: result.sum().backward())  # noqa: B023
        assert not captured or (forward, backward) == (1, 2)  # the gradient of the sum is not compiled
        mask = result.detach().cpu() != 0
        theirs = torch.full((200,), 0.5).requires_grad_()
        (theirs.sin() * theirs * mask / 0.375).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad.cpu(), theirs.grad)
        masks.append(mask)
    assert torch.equal(masks[0], masks[2]) and not torch.equal(masks[0], masks[1])
    assert 0.2 < masks[0].float().mean() < 0.55


def test_states_are_those_of_the_device() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(7, device="xla").cpu()
    torch.manual_seed(5)
    state, first = random_states.save(torch.ops.aten.rand.default, [7], device=torch.device("xla"))
    again = random_states.repeat(state, torch.ops.aten.rand.default, [7], device=torch.device("xla"))
    later = torch.rand(7, device="xla")
    assert torch.equal(first.cpu(), wanted) and torch.equal(again.cpu(), wanted) and not torch.equal(later.cpu(), wanted)


@torch.library.custom_op("xla_core_tests::increased", mutates_args=(), device_types="cpu")
def increased(a: torch.Tensor) -> torch.Tensor:
    """An operator that no table of ours can know."""
    return a + 1


@increased.register_fake
def _(a: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(a)


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning")
def test_a_recording_that_is_given_up_leaves_no_modes_behind() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16):
            return increased(x @ x.t())

    compiled = torch.compile(function, backend="openxla_eval", fullgraph=True)
    for _ in range(2):
        assert compiled(X.to("xla")).dtype == torch.bfloat16
        assert torch.is_grad_enabled() and not torch.is_autocast_enabled("xla")


TORCH_LEVEL: dict[str, Callable[[torch.Tensor], Any]] = {
    "gradient": lambda x: torch.func.grad(lambda y: (y**2).sum())(x),
    "batched": lambda x: torch.vmap(lambda row: row.sum() * row)(x),
    "set": lambda x: x.set_(x * 2),
    "turned in place": lambda x: x.t_(),
}


@pytest.mark.parametrize("name", TORCH_LEVEL)
def test_graphs_of_torch_functions(name: str) -> None:
    """Backend openxla_eval gets transforms, and changes of what a tensor shows."""
    compiled = torch.compile(TORCH_LEVEL[name], backend="openxla_eval")
    for _ in range(2):
        ours, theirs = X.to("xla"), X.clone()
        torch.testing.assert_close(compiled(ours).cpu(), TORCH_LEVEL[name](theirs))
        torch.testing.assert_close(ours.cpu(), theirs)


def test_modes_see_nothing_of_compiled_graphs() -> None:
    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        seen: list[str]

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    model = nn.Linear(4, 2).to("xla")
    compiled = torch.compile(model, backend="openxla", fullgraph=True)
    mode = Watching()
    mode.seen = []
    with torch.no_grad(), mode:
        for _ in range(2):
            compiled(X.to("xla"))
    assert not [name for name in mode.seen if "addmm" in name or "linear" in name]
