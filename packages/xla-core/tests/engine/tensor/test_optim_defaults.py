"""Optimizers of stock torch on xla parameters: list operations by default, CPU results, no compile after the first steps."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from xla_core.activation import activate
from xla_core.base import metrics, private_torch
from xla_core.engine.runtime.client import current_recorder
from xla_core.engine.runtime.sync import forbid_reads, step
from xla_core.engine.tensor.tensor import XLATensor

activate()
SHAPES = [(3, 4), (4,)]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (optim.SGD, {"lr": 0.1}),
    "SGD momentum": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adam": (optim.Adam, {}),
    "Adam amsgrad": (optim.Adam, {"amsgrad": True, "weight_decay": 0.01}),
    "AdamW": (optim.AdamW, {}),
    "NAdam": (optim.NAdam, {}),
    "RAdam": (optim.RAdam, {}),  # another branch from the sixth step on
    "RAdam loop": (optim.RAdam, {"foreach": False}),
    "Adamax": (optim.Adamax, {}),
    "Adadelta": (optim.Adadelta, {}),
    "Adagrad": (optim.Adagrad, {}),
    "RMSprop": (optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "Rprop": (optim.Rprop, {}),
    "ASGD": (optim.ASGD, {}),
}
CAPTURABLE = [name for name, (kind, _) in CASES.items() if "capturable" in inspect.signature(kind).parameters]
# torch itself selects tensor by tensor in Rprop, and reads its averages back in ASGD.
PER_PARAMETER = {"Rprop"}
READS = {"ASGD"}


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    torch.manual_seed(0)
    step(current_recorder())
    yield
    forbid_reads(None)


def counter(name: str) -> int:
    return metrics.counter(name)


def operations() -> int:
    """Operations recorded since the last step."""
    return sum(type(entry) is tuple for entry in current_recorder().pending_graph.entries)


def train(kind: Any, settings: dict[str, Any], device: str) -> tuple[list[torch.Tensor], list[int]]:
    """Weights after eight steps with a schedule, and programs compiled in each step."""
    generator = torch.Generator().manual_seed(7)
    weights = [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in SHAPES]
    optimizer = kind(weights, **settings)
    schedule = optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    compiled = []
    for _ in range(8):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator).to(device)
        before = counter("UncachedCompile")
        optimizer.step()
        schedule.step()
        step(current_recorder())
        compiled.append(counter("UncachedCompile") - before)
    return [weight.detach() for weight in weights], compiled


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_cpu(name: str) -> None:
    kind, settings = CASES[name]
    reads = counter("aten::_local_scalar_dense")
    ours, compiled = train(kind, settings, "xla")
    assert (counter("aten::_local_scalar_dense") > reads) == (name in READS)
    theirs, _ = train(kind, settings, "cpu")
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu(), yours, rtol=1e-5, atol=1e-6)
    assert name in READS or sum(compiled[:3]) <= 2
    assert sum(compiled[3:]) == 0


def recorded(kind: Any, settings: dict[str, Any], count: int) -> int:
    """Operations of the second step of an optimizer of `count` weights."""
    weights = [nn.Parameter(torch.ones(3, 4).to("xla")) for _ in range(count)]
    for weight in weights:
        weight.grad = torch.ones(3, 4).to("xla")
    optimizer = kind(weights, **settings)
    optimizer.step()
    before = operations()
    optimizer.step()
    return operations() - before


@pytest.mark.parametrize("name", [name for name in CASES if name not in PER_PARAMETER | READS])
def test_recording_does_not_grow_with_the_parameters(name: str) -> None:
    kind, settings = CASES[name]
    assert recorded(kind, settings, 40) == recorded(kind, settings, 2) < 20


def test_a_loop_can_still_be_asked_for() -> None:
    settings = {"lr": 0.1, "foreach": False}
    assert recorded(optim.SGD, settings, 8) > recorded(optim.SGD, {"lr": 0.1}, 8)
    ours, _ = train(optim.SGD, settings, "xla")
    theirs, _ = train(optim.SGD, settings, "cpu")
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu(), yours)


@pytest.mark.parametrize("name", CAPTURABLE)
def test_capturable(name: str) -> None:
    kind, settings = CASES[name]
    reads = counter("aten::_local_scalar_dense")
    forbid_reads("a capturable optimizer reads nothing")
    ours, compiled = train(kind, {**settings, "capturable": True}, "xla")
    forbid_reads(None)
    assert counter("aten::_local_scalar_dense") == reads
    assert sum(compiled[3:]) == 0
    theirs, _ = train(kind, settings, "cpu")
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.cpu(), yours, rtol=1e-4, atol=1e-5)


def test_state_of_a_capturable_optimizer_is_on_the_device() -> None:
    weight = nn.Parameter(torch.ones(3).to("xla"))
    optimizer = optim.Adam([weight], capturable=True)
    weight.grad = torch.ones(3).to("xla")
    optimizer.step()
    assert optimizer.state[weight]["step"].device.type == "xla"


def gradients(device: str) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    weights = [nn.Parameter(torch.randn(shape, generator=generator).to(device)) for shape in SHAPES]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator).to(device) * 4
    return weights


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_grad_norm_reads_nothing(norm_type: float, max_norm: float) -> None:
    ours, theirs = gradients("xla"), gradients("cpu")
    executions = counter("ExecuteComputation")
    forbid_reads("clipping reads nothing")
    norm = nn.utils.clip_grad_norm_(ours, max_norm, norm_type)
    forbid_reads(None)
    assert counter("ExecuteComputation") == executions
    expected = nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    torch.testing.assert_close(norm.cpu(), expected)
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), yours.grad)


def test_clip_grad_norm_records_lists() -> None:
    def clipped(count: int) -> int:
        weights = [nn.Parameter(torch.ones(3).to("xla")) for _ in range(count)]
        for weight in weights:
            weight.grad = torch.ones(3).to("xla")
        before = operations()
        nn.utils.clip_grad_norm_(weights, 1.0)
        return operations() - before

    assert clipped(20) == clipped(2) < 20


def test_clip_grad_value() -> None:
    ours, theirs = gradients("xla"), gradients("cpu")
    nn.utils.clip_grad_value_(ours, 0.3)
    nn.utils.clip_grad_value_(theirs, 0.3)
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.cpu(), yours.grad)


def test_registering_twice_changes_nothing() -> None:
    from xla_core.engine.tensor import optim as defaults

    defaults.register()
    for supported in private_torch.foreach_types():
        assert supported.count(XLATensor) == 1


@pytest.mark.parametrize("name", ["_fused_adagrad_", "_fused_adam_", "_fused_adamw_", "_fused_sgd_"])
@pytest.mark.parametrize("overload", ["default", "tensor_lr"])
def test_fused_updates_take_fake_tensors(name: str, overload: str) -> None:
    update = getattr(getattr(torch.ops.aten, name), overload)
    with FakeTensorMode():
        values = {
            "List[Tensor]": lambda: [torch.ones(3, device="xla")],
            "Tensor": lambda: torch.ones((), device="xla"),
            "float": lambda: 0.1,
        }
        needed = [argument for argument in update._schema.arguments if not argument.has_default_value()]
        arguments = {argument.name: values.get(str(argument.type), lambda: False)() for argument in needed}
        assert update(**arguments) is None
    assert [parameter.shape for parameter in arguments["self"]] == [(3,)]


@pytest.mark.parametrize("kind", [optim.Adagrad, optim.Adam, optim.AdamW, optim.SGD])
@pytest.mark.parametrize("rate", [torch.tensor(0.1), torch.tensor([0.1])], ids=["0-d", "one element"])
def test_fused_updates_take_a_rate_on_the_cpu(kind: Any, rate: torch.Tensor) -> None:
    def trained(device: str) -> torch.Tensor:
        weight = torch.ones(3, device=device)
        optimizer = kind([weight], lr=rate, fused=True)
        for number in range(3):
            weight.grad = torch.full((3,), number + 1.0, device=device)
            optimizer.step()
        return weight.cpu()

    torch.testing.assert_close(trained("xla"), trained("cpu"))


class Wrapped(torch.Tensor):
    """A tensor of another class on the device, as DTensor is one: what it holds does the work."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made: Wrapped = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(Wrapped, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapped, func(*args, **kwargs))


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5, "foreach": False}], ids=["lists", "dampened"])
def test_momentum_of_tensors_of_another_class(options: dict[str, Any]) -> None:
    def trained(wrap: Any) -> torch.Tensor:
        weight = wrap(torch.ones(3))
        optimizer = optim.SGD([weight], lr=0.1, **options)
        for number in range(3):
            weight.grad = wrap(torch.full((3,), number + 1.0))
            optimizer.step()
        return weight

    found = trained(lambda tensor: Wrapped(tensor.to("xla")))
    assert isinstance(found, Wrapped)
    torch.testing.assert_close(found.inner.cpu(), trained(lambda tensor: tensor))
