"""What torch's compiler is told of the device: its own backends, threads, objects that compiled functions make."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.exc import BackendCompilerFailed

from torch_xla.debug import metrics as met
from xla_core.base import metrics

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # of torch's own imports
@pytest.mark.parametrize("function", [lambda x: x * 2, lambda x: torch.zeros(3, device="xla") + 1], ids=["input", "made inside"])
def test_inductor_says_which_backend_to_use(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = X.to("xla") if function(X.to("xla")).shape == X.shape else X
    with pytest.raises(BackendCompilerFailed, match="backend='openxla'"):
        torch.compile(function)(x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_that_run_operations_one_by_one(backend: str) -> None:
    weight = torch.nn.Parameter(X.to("xla"))
    compiled = torch.compile(lambda x, w: (x @ w).square().sum() * x.shape[0], backend=backend, fullgraph=True)
    for count in (2, 4):
        weight.grad = None
        compiled(torch.ones(count, 3).to("xla"), weight).backward()
        theirs = X.clone().requires_grad_()
        ((torch.ones(count, 3) @ theirs).square().sum() * count).backward()
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.cpu(), theirs.grad)


def test_threads_may_make_the_first_call_at_once() -> None:
    from torch._dynamo.backends import torchxla

    run = torchxla.xla_backend_helper(fx.symbolic_trace(lambda a: a @ a.t()), [])
    together = threading.Barrier(4)
    found: list[Any] = []

    def call() -> None:
        together.wait()
        try:
            found.append(run(X.to("xla")).cpu())
        except Exception as error:
            found.append(error)

    before = metrics.counter("DynamoExtractCompiledGraph")
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found:
        torch.testing.assert_close(each, X @ X.t())
    assert metrics.counter("DynamoExtractCompiledGraph") == before + 1


class Shown(torch.Tensor):
    """A subclass without anything of its own."""


def new_module(x: torch.Tensor) -> torch.Tensor:
    """A module that is made, moved and filled where it is called."""
    layer = nn.Linear(4, 2).to(x.device)
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.fill_(2.0)
    result: torch.Tensor = layer(x)
    return result


def swapped(x: torch.Tensor) -> torch.Tensor:
    """A tensor with the data of another."""
    y = x.clone()
    y.data = x * 2
    return y


KEPT = {device: nn.Parameter(X.to(device)) for device in ("cpu", "xla")}
MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "parameter": lambda x: nn.Parameter(x * 2) * 3,
    "copy": lambda x: copy.deepcopy(KEPT[x.device.type]) * 2 + x,
    "subclass": lambda x: (x.as_subclass(Shown) * 2).as_subclass(torch.Tensor),
    "module": new_module,
    "data": swapped,
}


@pytest.mark.parametrize("name", MADE)
def test_compiled_functions_make_objects(name: str) -> None:
    function = MADE[name]
    compiled = torch.compile(function, backend="openxla")
    for _ in range(2):
        ours, theirs = compiled(X.to("xla")), function(X)
        assert ours.requires_grad == theirs.requires_grad
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def test_subclasses_keep_being_traced_on_the_cpu() -> None:
    """Our methods of torch.Tensor are torch's to the tracer."""
    for device in ("cpu", "xla"):
        result = torch.compile(lambda x: (x + 1).as_subclass(Shown) * 2, backend="aot_eager", fullgraph=True)(X.to(device))
        assert type(result) is Shown
        torch.testing.assert_close(result.as_subclass(torch.Tensor).cpu(), (X + 1) * 2)


def test_states_of_compiled_modules() -> None:
    theirs = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    ours = torch.compile(copy.deepcopy(theirs).to("xla"), backend="openxla")
    torch.testing.assert_close(ours(X.to("xla")).detach().cpu(), theirs(X).detach(), rtol=1e-4, atol=1e-5)
    other = copy.deepcopy(ours)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(X.to("xla")).count_nonzero().item() == 0
    other.load_state_dict(ours.state_dict())
    ours.eval(), theirs.eval(), other.eval()
    for model in (ours, other):
        torch.testing.assert_close(model(X.to("xla")).detach().cpu(), theirs(X).detach(), rtol=1e-4, atol=1e-5)


def test_stances_and_limits() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend="openxla", dynamic=False)
    torch.testing.assert_close(compiled(X.to("xla")).cpu(), X.sin())
    with torch.compiler.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match="recompile"):
        compiled(X[1:].to("xla"))
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(torch._dynamo.exc.RecompileError):
        compiled(X[1:].to("xla"))
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(compiled(X[1:].to("xla")).cpu(), X[1:].sin())
    for count in range(1, 12):  # beyond the limit of recompilations it is no longer compiled
        x = torch.linspace(0, 1, count)
        torch.testing.assert_close(compiled(x.to("xla")).cpu(), x.sin())


def test_graph_breaks_give_the_right_values() -> None:
    def function(x: torch.Tensor) -> Any:
        part = x[1:]
        if part.sum() > 0:
            part.mul_(2)
        else:
            part.sub_(x.max().item())
        print(end="")
        return part * 2, x, x.nonzero()

    compiled = torch.compile(function, backend="openxla")
    for sign in (1, -1, 1):
        ours, theirs = (X * sign).to("xla"), X * sign
        for mine, yours in zip(compiled(ours), function(theirs), strict=True):
            torch.testing.assert_close(mine.cpu(), yours)
    explained = torch._dynamo.explain(function)(X.to("xla"))
    assert explained.graph_break_count >= 2


def test_times_of_runs_are_in_the_report() -> None:
    met.clear_all()
    compiled = torch.compile(lambda x: x.cos(), backend="openxla")
    compiled(X.to("xla"))
    compiled(X.to("xla") + 1)
    report = met.metrics_report()
    for name in ("RunCachedGraph", "RunCachedGraphInputData", "RunCachedGraphOutputData"):
        data = met.metric_data(name)
        assert data is not None and data[0] == 2 and f"Metric: {name}\n" in report
    for name in ("DynamoExtractCompiledGraph", "DynamoSyncInputExecuteTime"):
        assert f"Counter: {name}\n" in report
