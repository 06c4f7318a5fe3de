"""Compiled functions over inputs of many shapes: CPU results, as many graphs as torch makes, one program a shape, lasting aliases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._pytree import tree_leaves

from torch_xla import experimental
from xla_core.base import metrics

ROWS = (3, 5, 7, 3, 1, 0)


def rows(count: int) -> torch.Tensor:
    return torch.linspace(-1, 2, 4 * count).reshape(count, 4).clone()  # that is no view


def same(ours: Any, theirs: Any, **tolerance: float) -> None:
    for mine, yours in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        if isinstance(yours, torch.Tensor):
            assert (mine.device.type, mine.dtype, mine.requires_grad) == ("xla", yours.dtype, yours.requires_grad)
            torch.testing.assert_close(mine.detach().cpu(), yours.detach(), **tolerance)
        else:
            assert type(mine) is type(yours) and mine == yours


def sizes(x: torch.Tensor) -> Any:
    """The number of rows in arithmetic, as result, and as argument of all that makes shapes."""
    n = x.shape[0]
    numbers = {"rows": n, "more": n * 3 + 1, "half": n / 2, "many": n > 4, "shape": x.shape}
    made = [torch.full((2,), n, device=x.device), torch.arange(2 * n, device=x.device), torch.zeros(n, 3, device=x.device) + x[:, :3]]
    views = (x.reshape(2, n, 2).sum(0), x.sum(0).expand(n, 4) + torch.arange(n, device=x.device)[:, None], x[: n // 2] * 2, x.view(-1) + 1)
    return numbers, made, views, x * n * 2, F.pad(x, (0, 0, 0, 8 - n)), x.clamp(max=n / 4), torch.cat([x, x]) ** 2, x * max(n, 4)


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_sizes_are_numbers_of_the_graph(dynamic: bool | None) -> None:
    ours, theirs = CompileCounterWithBackend("openxla"), CompileCounterWithBackend("aot_eager")
    stock = torch.compile(sizes, backend=theirs, dynamic=dynamic, fullgraph=True)
    wanted = [stock(rows(count)) for count in ROWS]
    torch._dynamo.reset()
    compiled = torch.compile(sizes, backend=ours, dynamic=dynamic, fullgraph=True)
    before = metrics.counter("DynamoExtractCompiledGraph")
    for count, result in zip(ROWS, wanted, strict=True):
        same(compiled(rows(count).to("xla")), result)
    assert ours.frame_count == theirs.frame_count, "graphs"
    assert metrics.counter("DynamoExtractCompiledGraph") - before == len(set(ROWS)), "programs"


MODES: dict[str, Callable[[str], contextlib.AbstractContextManager[Any]]] = {
    "no_grad": lambda device: torch.no_grad(),
    "inference": lambda device: torch.inference_mode(),
    "autocast": lambda device: torch.autocast(device, torch.bfloat16),
    "eager": lambda device: experimental.eager_mode_context(device == "xla"),
}


@pytest.mark.parametrize("mode", MODES)
def test_sizes_in_another_mode(mode: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return (x @ x.t()).float() * x.shape[0], x.shape[0] + 1, x[1:]

    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    for count in (3, 5, 4):
        x, y = rows(count).to("xla").requires_grad_(), rows(count).requires_grad_()
        with MODES[mode]("xla"):
            found = compiled(x)
        with MODES[mode]("cpu"):
            wanted = function(y)
        same(found, wanted, rtol=2e-2, atol=2e-2)


ALIASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "parts": lambda x: (x[1:], x.view(-1), x[: x.shape[0] // 2], x),
    "turned": lambda x: (x.t(), x.reshape(x.shape[0], 2, 2).permute(2, 0, 1), x.unsqueeze(1).expand(x.shape[0], 2, 4)[:, 0]),
    "flat": lambda x: x.reshape(x.shape[0], 2, 2).permute(2, 0, 1).reshape(2, -1),
    "windows": lambda x: x.as_strided((x.shape[0], 2), (4, 1), 1),
    "each other": lambda x: (lambda y: (y, y[1:], y.t()))(x + 1),
}


@pytest.mark.parametrize("name", ALIASES)
def test_results_of_any_shape_keep_sharing_data(name: str) -> None:
    function = ALIASES[name]
    compiled = torch.compile(function, backend="openxla", dynamic=True)
    for count in (3, 5):
        ours, theirs = rows(count).to("xla"), rows(count)
        found, wanted = tree_leaves(compiled(ours)), tree_leaves(function(theirs))
        for place in range(len(wanted)):
            for results in (found, wanted):
                results[place].mul_(place + 2)
            same([*found, ours], [*wanted, theirs])


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's tracer asks for it
def test_gradients_flow_through_aliases_of_any_shape() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], 2, 2).permute(2, 0, 1)

    compiled = torch.compile(turned, backend="openxla", dynamic=True)
    for count in (3, 4):
        ours, theirs = rows(count).to("xla").requires_grad_(), rows(count).requires_grad_()
        for weight, function in ((ours, compiled), (theirs, turned)):
            whole = weight * 1
            function(whole)[1].mul_(3)  # written to through the alias, where autograd sees it
            whole.square().sum().backward()
        same(ours.grad, theirs.grad)


def test_arguments_that_show_parts_of_each_other() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return y * 2

    pairs: list[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = [
        lambda t: (t, t.t()),
        lambda t: (t[0], t),
        lambda t: (t.view(-1)[:6], t.view(-1)[2:8]),
        lambda t: (t[:2], t[2:]),
        lambda t: (t.detach(), t),
    ]
    for make in pairs:
        torch._dynamo.reset()
        compiled = torch.compile(write, backend="openxla", fullgraph=True, dynamic=False)
        for _ in range(2):
            ours, theirs = rows(4).to("xla"), rows(4)
            same(compiled(*make(ours)), write(*make(theirs)))
            same(ours, theirs)


@pytest.mark.parametrize("mark", ["mark_dynamic", "maybe_mark_dynamic", "mark_static", "mark_unbacked"])
def test_marks_of_dimensions(mark: str) -> None:
    views: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"whole": lambda t: t, "turned": lambda t: t.t(), "cut": lambda t: t[:, 1:]}
    for name, view in views.items():
        torch._dynamo.reset()
        counter = CompileCounterWithBackend("openxla")
        compiled = torch.compile(lambda x: (x * 2).sum(1), backend=counter)
        for count in (4, 5, 6):
            base = rows(count) if name != "turned" else rows(count).t().contiguous()
            shown = view(base.to("xla"))
            getattr(torch._dynamo.decorators, mark)(shown, 0)
            marks = dict(shown.__dict__)
            same(compiled(shown), (view(base) * 2).sum(1))
            assert shown.__dict__ == marks, "they are the user's"
        assert counter.frame_count == (3 if mark == "mark_static" else 1)
