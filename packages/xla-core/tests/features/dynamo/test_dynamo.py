"""`torch.compile` with backends `openxla` and `openxla_eval`: CPU results, one program, one execution a call."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla import experimental
from torch_xla.core.dynamo_bridge import extract_compiled_graph, partition_fx_graph_for_cpu_fallback
from torch_xla.utils.buffer_donor_context import alias_with_buffer_donor_config
from xla_core.abi.graph import Graph, register_pass, replace
from xla_core.base import config, metrics
from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.compile.cache import programs
from xla_core.engine.runtime.client import current_recorder
from xla_core.features.dynamo import config as dynamo_config
from xla_core.features.dynamo.bridge import CompiledGraph
from xla_core.features.dynamo.program import RecordedGraph
from xla_core.ops import precision

BACKENDS = ["openxla", "openxla_eval"]


def counters(*names: str) -> list[int]:
    return [metrics.counter(name) for name in names]


def cost(function: Callable[[], Any]) -> tuple[Any, int, int]:
    """The result of a call, how many programs it compiled and how many it ran."""
    before = counters("UncachedCompile", "ExecuteComputation")
    result = function()
    after = counters("UncachedCompile", "ExecuteComputation")
    return result, after[0] - before[0], after[1] - before[1]


def on_xla(args: Any) -> list[Any]:
    return [arg.to("xla") if isinstance(arg, torch.Tensor) else arg for arg in args]


def same(ours: Any, theirs: Any) -> None:
    for mine, yours in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        if isinstance(mine, torch.Tensor):
            assert mine.device.type == "xla"
            torch.testing.assert_close(mine.detach().cpu(), yours.detach())
        else:
            assert mine == yours


X, Y = torch.arange(12.0).reshape(3, 4) / 7 - 0.5, torch.linspace(-1, 2, 12).reshape(3, 4)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "matmul": (lambda a, b: torch.relu(a @ b.t()) + 1, (X, Y), 1),
    "results twice, and an argument": (lambda a, b: (a + b, a, a + b), (X, Y), 1),
    "only views": (lambda a: (a.t(), a.view(-1)[2:], a.detach()), (X,), 0),
    "copy": (lambda a: a.clone(), (X,), 0),
    "in place": (lambda a: (a.add_(1), a * 2)[1], (X,), 1),
    "through a view": (lambda a: (a[0].mul_(2), a.sum(0))[1], (X,), 1),
    "out": (lambda a, b: torch.add(a, 1, out=b), (X, Y), 1),
    "numbers": (lambda a, k, f: a * k + f, (X, 3, 0.25), 1),
    "factories": (lambda a: (torch.zeros(3, device=a.device), a.new_ones(2), torch.arange(4, device=a.device) + a), (X,), 1),
    "a constant": (lambda a: a + torch.tensor([1.0, 2.0, 3.0, 4.0], device=a.device), (X,), 1),
    "a list": (lambda a: torch.split(a * 2, 2, 1), (X,), 1),
    "integers": (lambda a: a.to(torch.int64) // 2, (X * 10,), 1),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, backend: str) -> None:
    function, args, executions = FUNCTIONS[name]
    ours, theirs = on_xla(args), list(copy.deepcopy(args))
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for call in range(3):
        result, programs, runs = cost(lambda: compiled(*ours))
        same(result, function(*theirs))
        assert runs == executions
        assert programs <= 1 if call == 0 else programs == 0
    same([arg for arg in ours if isinstance(arg, torch.Tensor)], [arg for arg in theirs if isinstance(arg, torch.Tensor)])


def test_constants_of_the_cpu_are_part_of_the_program() -> None:
    compiled = torch.compile(lambda a: a * torch.tensor(2.0) + torch.arange(4).to(a.device), backend="openxla", fullgraph=True)
    x = X.to("xla")
    for _ in range(2):
        result, _, runs = cost(lambda: compiled(x))
        same(result, X * 2 + torch.arange(4))
        assert runs == 1


def test_random_numbers_of_the_cpu_are_not() -> None:
    compiled = torch.compile(lambda a: a + torch.rand(4).to(a.device), backend="openxla", fullgraph=True)
    x = X.to("xla")
    for seed in (3, 4):
        torch.manual_seed(seed)
        ours = compiled(x)
        torch.manual_seed(seed)
        same(ours, X + torch.rand(4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_keep_sharing_data(backend: str) -> None:
    compiled = torch.compile(lambda a: (a, a.t(), a + 1), backend=backend, fullgraph=True)
    x = X.to("xla")
    itself, turned, other = compiled(x)
    assert itself is x
    x.add_(100)
    torch.testing.assert_close(turned.cpu(), X.t() + 100)
    torch.testing.assert_close(other.cpu(), X + 1)


def test_arguments_that_share_data() -> None:
    def write(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(3)
        return b + 1

    compiled = torch.compile(write, backend="openxla", fullgraph=True)
    ours, theirs = X.to("xla"), X.clone()
    same(compiled(ours, ours[1]), write(theirs, theirs[1]))
    same(ours, theirs)


def test_views_as_arguments() -> None:
    function = torch.compile(lambda a: a.sum(0) * 2, backend="openxla", fullgraph=True)
    ours = X.to("xla")
    views: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda t: t, lambda t: t.t(), lambda t: t[1:], lambda t: t[:, 1:3]]
    for view in views:
        same(function(view(ours)), view(X).sum(0) * 2)


def test_another_shape_is_another_program() -> None:
    compiled = torch.compile(lambda a: (a * 2).sum(0) * a.shape[0], backend="openxla", dynamic=True)
    for rows, expected in ((3, 1), (5, 1), (3, 0), (5, 0), (6, 1)):
        x = torch.randn(rows, 4)
        arg = x.to("xla")
        result, programs, runs = cost(lambda arg=arg: compiled(arg))  # type: ignore[misc]
        same(result, (x * 2).sum(0) * rows)
        assert (programs, runs) == (expected, 1)


def test_random_numbers_are_drawn_at_each_call() -> None:
    compiled = torch.compile(lambda a: F.dropout(a, 0.5) + torch.rand_like(a), backend="openxla", fullgraph=True)
    ones = torch.ones(200).to("xla")
    torch.manual_seed(5)
    first, second = compiled(ones), compiled(ones)
    assert not torch.equal(first.cpu(), second.cpu())
    torch.manual_seed(5)
    assert torch.equal(first.cpu(), compiled(ones).cpu())
    assert torch.equal(second.cpu(), compiled(ones).cpu())
    kept = (first.cpu() >= 2).float().mean().item()
    assert 0.3 < kept < 0.7


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(36, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return F.log_softmax(self.out(x.flatten(1)), -1)


def train(net: nn.Module, device: str, compiled: bool, steps: int = 4) -> tuple[list[float], list[tuple[int, int]]]:
    model = torch.compile(net, backend="openxla", fullgraph=True) if compiled else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(2)
    losses, costs = [], []
    for _ in range(steps):
        x, y = torch.randn(4, 1, 8, 8, generator=generator).to(device), torch.randint(5, (4,), generator=generator).to(device)

        def one_step(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.nll_loss(model(x), y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            return loss

        loss, programs, runs = cost(one_step)
        losses.append(loss.item())
        costs.append((programs, runs))
    return losses, costs


def test_training_updates_weights_and_statistics() -> None:
    theirs = Net()
    ours = copy.deepcopy(theirs).to("xla")
    losses, costs = train(ours, "xla", compiled=True)
    expected, _ = train(theirs, "cpu", compiled=False)
    assert losses == pytest.approx(expected, rel=1e-4)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].cpu(), value, rtol=1e-4, atol=1e-5, msg=name)
    assert costs[-1][0] == 0
    assert costs[-1][1] <= 4  # forward, loss gradient, backward, optimizer


def test_inference_runs_one_program() -> None:
    theirs = Net().eval()
    ours = copy.deepcopy(theirs).to("xla")
    x = torch.randn(2, 1, 8, 8)
    arg = x.to("xla")
    for backend in BACKENDS:
        compiled = torch.compile(ours, backend=backend, fullgraph=True)
        with torch.no_grad():
            compiled(arg)
            result, programs, runs = cost(lambda compiled=compiled: compiled(arg))  # type: ignore[misc]
            same(result, theirs(x))
        assert (programs, runs) == (0, 1)


def test_gradients_through_the_eval_backend() -> None:
    w = nn.Parameter(Y.to("xla"))
    compiled = torch.compile(lambda a, b: (a * b).sum(), backend="openxla_eval", fullgraph=True)
    compiled(X.to("xla"), w).backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad.cpu(), X)


def test_checkpoint_and_autocast_inside() -> None:
    layer = nn.Linear(4, 4)
    ours = copy.deepcopy(layer).to("xla")

    def run(model: nn.Module, device: str, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            hidden: torch.Tensor = checkpoint(lambda t: torch.tanh(model(t)), x, use_reentrant=False)
        return hidden.float().square().sum()

    compiled = torch.compile(run, backend="openxla", fullgraph=True)
    loss = compiled(ours, "xla", X.to("xla"))
    loss.backward()
    expected = run(layer, "cpu", X)
    expected.backward()
    torch.testing.assert_close(loss.detach().cpu(), expected.detach(), rtol=2e-2, atol=2e-2)
    assert ours.weight.grad is not None
    torch.testing.assert_close(ours.weight.grad.cpu(), layer.weight.grad, rtol=5e-2, atol=5e-2)


@torch.library.custom_op("xla_core_tests::doubled", mutates_args=(), device_types="cpu")
def doubled(a: torch.Tensor) -> torch.Tensor:
    """An operator that no table of ours can know."""
    return a * 2


@doubled.register_fake
def _(a: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(a)


def unsupported(a: torch.Tensor) -> torch.Tensor:
    values: torch.Tensor = torch.ops.xla_core_tests.doubled(a @ a.t() + 1)
    return values.sum() * 2 + (a * 3).sum()


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_cpu_fallback_inside(backend: str) -> None:
    compiled = torch.compile(unsupported, backend=backend, fullgraph=True)
    x = X.to("xla")
    for _ in range(3):
        result, programs, _ = cost(lambda: compiled(x))
        torch.testing.assert_close(result.cpu(), unsupported(X))
    assert programs == 0
    x.mul_(2)
    torch.testing.assert_close(compiled(x).cpu(), unsupported(X * 2))


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning")
def test_partition() -> None:
    model = fx.experimental.proxy_tensor.make_fx(unsupported)(X)
    parted = partition_fx_graph_for_cpu_fallback(model, [X.to("xla")], [X.to("xla")], [X.to("xla")])
    pieces = [module for module in parted.modules() if isinstance(module, CompiledGraph)]
    assert len(pieces) == 2
    alone = [node.target for node in parted.graph.nodes if node.op == "call_function"]
    assert alone == [torch.ops.xla_core_tests.doubled.default]
    same(parted(X.to("xla")), unsupported(X))
    assert all(isinstance(program, RecordedGraph) for piece in pieces for program in piece._programs.values())


def test_extraction_changes_nothing() -> None:
    def model(a: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * torch.rand(4, device=a.device)

    graph = fx.symbolic_trace(model)
    x, y = X.to("xla"), Y.to("xla")
    pending = y + 1
    entries, seed = list(current_recorder().pending_graph.entries), current_recorder().seed
    run = extract_compiled_graph(graph, (x,))
    assert current_recorder().pending_graph.entries == entries
    assert current_recorder().seed == seed
    same(x, X)
    run(x)
    same(x, X + 1)
    same(pending, Y + 1)


@pytest.fixture
def turns() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """An operation like a collective: it takes the device's token and makes the next one. Adds the number of the call."""
    context = xm._get_device_context()
    library = torch.library.Library("xla_core_turns_tests", "DEF")

    def turn(x: torch.Tensor) -> torch.Tensor:
        if context.all_reduce_token is None:
            context.all_reduce_token = torch.zeros(()).to("xla")
        context.all_reduce_token = context.all_reduce_token + 1
        return x + context.all_reduce_token

    library.define("turn(Tensor x) -> Tensor")
    library.impl("turn", turn, "PrivateUse1")
    library.impl("turn", torch.empty_like, "Meta")
    before, context.all_reduce_token = context.all_reduce_token, None
    yield torch.ops.xla_core_turns_tests.turn
    context.all_reduce_token = None
    context.all_reduce_token = before
    library._destroy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_devices_token_goes_through_programs(backend: str, turns: Callable[[torch.Tensor], torch.Tensor]) -> None:
    compiled = torch.compile(lambda x: turns(turns(x)), backend=backend, fullgraph=True)
    zero = torch.zeros((), device="xla")
    assert compiled(zero).item() == 1 + 2  # the first token of all is made while recording
    pending = turns(zero)
    result, _, runs = cost(lambda: compiled(zero))
    assert runs == 2, "the program, and what it needs of what is pending"
    behind = turns(zero)
    assert [behind.item(), result.item(), pending.item()] == [6, 4 + 5, 3]
    torch_xla.sync()
    result, programs, runs = cost(lambda: compiled(zero))
    assert (result.item(), programs, runs) == (7 + 8, 0, 1)


@pytest.mark.filterwarnings("ignore:.*has no XLA lowering:RuntimeWarning")
def test_the_devices_token_goes_through_parts_of_programs(turns: Callable[[torch.Tensor], torch.Tensor]) -> None:
    doubled = torch.ops.xla_core_tests.doubled
    graph = fx.symbolic_trace(lambda x: turns(doubled(turns(x))))
    for node in graph.graph.nodes:
        node.target = getattr(node.target, "default", node.target)
        node.meta["val"] = torch.empty((), device="xla")
    turns(torch.zeros((), device="xla"))
    parted = partition_fx_graph_for_cpu_fallback(graph, [torch.zeros((), device="xla")])
    assert len([module for module in parted.modules() if isinstance(module, CompiledGraph)]) == 2
    assert [parted(torch.zeros((), device="xla")).item() for _ in range(2)] == [2 * 2 + 3, 2 * 4 + 5]


def test_what_needs_the_devices_token_cannot_be_exported(turns: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Turns(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return turns(x)

    x = torch.zeros((), device="xla")
    turns(x)
    with pytest.raises(UnsupportedOperationError, match="collectives"):
        torch_xla.stablehlo.exported_program_to_stablehlo(torch.export.export(Turns(), (torch.zeros(()),)))
    assert turns(x).item() == 2


def test_extracted_modules_keep_their_state() -> None:
    theirs = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()).requires_grad_(False)
    ours = copy.deepcopy(theirs).to("xla")
    graph = fx.symbolic_trace(ours)
    x = X.to("xla")
    run = extract_compiled_graph(graph, (x,))
    for _ in range(3):
        result, _, runs = cost(lambda: run(x))
        same(result, theirs(X))
        assert runs == 1
    for model in (ours, theirs):
        model.get_parameter("0.weight").mul_(2)
    same(run(x), theirs(X))
    ours.eval()
    same(run(x), theirs.eval()(X))
    same(list(ours.state_dict().values()), list(theirs.state_dict().values()))


def test_another_precision_is_another_program() -> None:
    a, b = (torch.randn(7, 13).to("xla"), torch.randn(13, 9).to("xla"))
    product = torch.compile(torch.matmul, backend="openxla")
    product(a, b)
    before = precision.chosen()
    try:
        precision.choose("default")
        results = [cost(lambda: product(a, b)) for _ in range(2)]
    finally:
        precision.choose(before)
    results.append(cost(lambda: product(a, b)))
    assert [(programs, runs) for _, programs, runs in results] == [(1, 1), (0, 1), (0, 1)]
    for result, _, _ in results:
        torch.testing.assert_close(result.cpu(), a.cpu() @ b.cpu())


def test_graph_passes_that_come_and_go_make_other_programs() -> None:
    a = torch.randn(3, 19)
    arg = a.to("xla")
    compiled = torch.compile(lambda a: torch.sin(a), backend="openxla")
    same(compiled(arg), torch.sin(a))

    def cosine(graph: Graph) -> Graph:
        (sine,) = (operation for operation in graph.operations() if operation.target == "aten::sin")
        return replace(graph, sine, "aten::cos", *graph.arguments(sine)[0])

    end = register_pass(cosine)
    try:
        same(compiled(arg), torch.cos(a))
        same(compiled(arg), torch.cos(a))
    finally:
        end()
    result, programs, runs = cost(lambda: compiled(arg))
    same(result, torch.sin(a))
    assert (programs, runs) == (0, 1)


def test_the_cache_in_memory_decides_what_is_kept() -> None:
    a = torch.randn(3, 23)
    arg = a.to("xla")
    compiled = torch.compile(lambda a: torch.tanh(a), backend="openxla")
    compiled(arg)
    assert cost(lambda: compiled(arg))[1:] == (0, 1)
    programs().clear()
    result, compiles, _ = cost(lambda: compiled(arg))
    same(result, torch.tanh(a))
    assert compiles == 1


def test_pending_inputs_are_computed() -> None:
    compiled = torch.compile(lambda a: a * 2, backend="openxla")
    before = counters("DynamoSyncInputExecuteTime")[0]
    compiled(X.to("xla"))
    assert counters("DynamoSyncInputExecuteTime")[0] == before
    same(compiled(X.to("xla") + 1), (X + 1) * 2)
    assert counters("DynamoSyncInputExecuteTime")[0] == before + 1


def test_the_check_of_inputs_can_be_skipped() -> None:
    compiled = torch.compile(lambda a: a * 2, backend="openxla")
    same(compiled(X.to("xla")), X * 2)
    torch_xla._dynamo.config.skip_input_data_check = True
    before = counters("DynamoSyncInputExecuteTime")
    same(compiled(X.to("xla")), X * 2)
    same(compiled(X.to("xla") + 1), (X + 1) * 2)
    assert counters("DynamoSyncInputExecuteTime") == before
    assert torch_xla._dynamo.config is sys.modules["torch_xla._dynamo.config"] is dynamo_config


def test_results_without_data_and_constants() -> None:
    def function(a: torch.Tensor) -> Any:
        return None, 3, a + 1, torch.ones(2), torch.zeros(3, device=a.device), None, "text"

    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    for _ in range(2):
        result, _, runs = cost(lambda: compiled(X.to("xla")))
        assert runs == 1 and [item.device.type for item in result if isinstance(item, torch.Tensor)] == ["xla", "cpu", "xla"]
        assert [item.tolist() if isinstance(item, torch.Tensor) else item for item in result if item is not result[2]] == (
            [None, 3, [1.0, 1.0], [0.0, 0.0, 0.0], None, "text"]
        )
        result[3].add_(1)  # the caller's own


def test_the_graphs_own_tensors_of_the_cpu_are_given_themselves() -> None:
    model = fx.symbolic_trace(_Holder())
    compiled = extract_compiled_graph(model, (X.to("xla"),))
    total, held = compiled(X.to("xla"))
    same(total, X + 1)
    assert held is model.held


class _Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("held", torch.ones(2))

    def forward(self, a: torch.Tensor) -> Any:
        return a + 1, self.held


def test_recordings_and_runs_are_counted() -> None:
    def runs() -> int:
        found = metrics.metric("RunCachedGraph")
        return 0 if found is None else found.total_samples

    compiled = torch.compile(lambda a: (a @ a.t()).relu(), backend="openxla", dynamic=True)
    found = []
    for rows in (3, 4, 3, 5, 4):
        before, ran = counters("DynamoExtractCompiledGraph")[0], runs()
        x = torch.randn(rows, 2)
        same(compiled(x.to("xla")), (x @ x.t()).relu())
        found.append((counters("DynamoExtractCompiledGraph")[0] - before, runs() - ran))
    assert found == [(1, 1), (1, 1), (0, 1), (1, 1), (0, 1)]


@pytest.mark.parametrize("around", ["eager", "region", "full graph"])
def test_training_inside_another_mode(around: str) -> None:
    theirs = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    ours = copy.deepcopy(theirs).to("xla")
    compiled = torch.compile(ours, backend="openxla", fullgraph=True)

    def steps(model: Any, net: nn.Module, x: torch.Tensor, region: Callable[..., Any]) -> list[float]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def one(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = region(one)
        return [run(x).item() for _ in range(3)]

    regions: dict[str, Callable[..., Any]] = {
        "eager": lambda one: one,
        "region": torch_xla.compile,
        "full graph": lambda one: torch_xla.compile(one, full_graph=True),
    }
    with experimental.eager_mode_context(around == "eager"):
        found = steps(compiled, ours, X.to("xla"), regions[around])
    assert found == pytest.approx(steps(theirs, theirs, X, regions["eager"]), rel=1e-4)


def test_errors_are_those_of_the_graph() -> None:
    graph = fx.symbolic_trace(lambda a, b: a @ b)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        extract_compiled_graph(graph, (X.to("xla"), Y.to("xla")))


def test_debug_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    torch.compile(lambda a: a + 1, backend="openxla")(X.to("xla"))
    assert not [record for record in caplog.records if record.name.startswith("torch_xla")]
    monkeypatch.setenv(config.DYNAMO_DEBUG.name, "1")
    with caplog.at_level(logging.WARNING):
        torch.compile(lambda a: a + 2, backend="openxla")(X.to("xla"))
    text = caplog.text
    assert "torch.ops.aten.add.Tensor" in text
    assert "aten.add.Tensor(%0, 2)" in text or "aten.add.Tensor(%0, %1)" in text


def test_fake_tensors() -> None:
    x = X.to("xla")[:, 1:]
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        product = fake.t() @ fake
        made = torch.tensor([1, 2], device="xla")
    assert (product.shape, product.device.type) == ((3, 3), "xla")
    assert (made.shape, made.device.type) == ((2,), "xla")


def test_storages_tell_what_shares_data() -> None:
    x = X.to("xla")
    assert x.untyped_storage() is x.t()[1:].untyped_storage()
    assert x.untyped_storage() is not x.clone().untyped_storage()
    assert x.untyped_storage().nbytes() == 48


CHECK = """
import sys, torch, {first}, {second}
from xla_core.features.dynamo.tracing import _expected
if {late}: assert "torch._dynamo" not in sys.modules
f = torch.compile(lambda a: a * 2, backend="openxla", fullgraph=True)
assert f(torch.ones(2).to("xla")).tolist() == [2.0, 2.0]
assert list(_expected) == ["torch._inductor.compile_fx"]
"""


@pytest.mark.parametrize(("first", "second", "late"), [("torch_xla", "sys", True), ("torch._dynamo", "torch_xla", False)])
def test_whichever_is_imported_first(first: str, second: str, late: bool, interpreter: Callable[..., str]) -> None:
    interpreter(CHECK.format(first=first, second=second, late=late))


def test_graphs_take_over_inputs_that_are_given_away() -> None:
    def aliased() -> float:
        found = metrics.metric("InputOutputAliasCount")
        return 0.0 if found is None else found.accumulator

    compiled = torch.compile(lambda a, b: a * 2 + b, backend="openxla", fullgraph=True)
    kept, other = X.to("xla"), Y.to("xla")
    same(compiled(kept, other), X * 2 + Y)
    assert torch_xla._XLAC._set_buffer_donation(kept, True)
    same(compiled(kept, other), X * 2 + Y)
    assert torch_xla._XLAC._get_buffer_donation(kept)  # outside the context it is only marked
    before = aliased()
    with alias_with_buffer_donor_config():
        assert torch_xla._XLAC._xla_get_enable_alias_with_buffer_donor_config()
        with alias_with_buffer_donor_config(False):
            same(compiled(kept, other), X * 2 + Y)
        result = compiled(kept, other)
    assert not torch_xla._XLAC._xla_get_enable_alias_with_buffer_donor_config()
    same(result, X * 2 + Y)
    assert aliased() == before + 1
    with pytest.raises(RuntimeError, match="marked for donation"):
        kept.cpu()
    same(compiled(X.to("xla"), other), X * 2 + Y)


def test_what_is_pending_keeps_inputs_that_are_given_away() -> None:
    compiled = torch.compile(lambda a: a * 2, backend="openxla", fullgraph=True)
    x = X.to("xla")
    torch_xla.sync()
    pending = x + 1
    torch_xla._XLAC._set_buffer_donation(x, True)
    with alias_with_buffer_donor_config():
        same(compiled(x), X * 2)
    torch_xla._XLAC._set_buffer_donation(x, False)
    same(pending, X + 1)
    same(x, X)
