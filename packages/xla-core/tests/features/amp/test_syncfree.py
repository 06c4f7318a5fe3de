"""Optimizers that skip an update without a host read, against `torch.optim` on the CPU."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xla.amp import syncfree

SHAPES = ((3, 4), (5,), (), (2, 0))
CASES = [
    ("SGD", {}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.8, "nesterov": True, "maximize": True}),
    ("SGD", {"lr": torch.tensor(0.1), "weight_decay": torch.tensor(0.2)}),
    ("Adam", {}),
    ("Adam", {"lr": 0.1, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.1, "amsgrad": True, "maximize": True}),
    ("Adam", {"lr": 0.05, "betas": (0.0, 0.5), "eps": 1e-3, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("Adam", {"lr": torch.tensor([0.1]), "betas": (torch.tensor(0.8), torch.tensor(0.9))}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.3, "amsgrad": True}),
    ("AdamW", {"lr": torch.tensor(0.1), "weight_decay": 0.3}),
]
case = pytest.mark.parametrize(("name", "options"), CASES, ids=lambda value: value if isinstance(value, str) else "-".join(value))


def make_params(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in SHAPES]


def give_grads(params: list[torch.Tensor], step: int, bad: bool = False) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator, dtype=param.dtype)
        if bad and param.numel():
            param.grad.view(-1)[0] = torch.inf if step % 2 else torch.nan


def flag(bad: bool) -> torch.Tensor:
    return torch.tensor(1.0 if bad else 0.0)


def assert_same(mine: list[torch.Tensor], theirs: list[torch.Tensor], **tolerance: Any) -> None:
    torch.testing.assert_close(mine, theirs, **tolerance)


@case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_torch(name: str, options: dict[str, Any], dtype: torch.dtype, masked: bool) -> None:
    mine, theirs = make_params(dtype), make_params(dtype)
    ours = getattr(syncfree, name)(mine, **options)
    reference = getattr(torch.optim, name)(theirs, **options)
    for step in range(6):
        give_grads(mine, step)
        give_grads(theirs, step)
        ours.step(**({"found_inf": flag(False)} if masked else {}))
        reference.step()
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype is torch.bfloat16 else {}
    assert_same(mine, theirs, **tolerance)


@case
def test_skipped_steps_leave_no_trace(name: str, options: dict[str, Any]) -> None:
    mine, theirs = make_params(), make_params()
    ours = getattr(syncfree, name)(mine, **options)
    reference = getattr(torch.optim, name)(theirs, **options)
    for step, bad in enumerate([True, True, False, True, False, False, True]):
        give_grads(mine, step, bad)
        before = [param.detach().clone() for param in mine]
        ours.step(found_inf=flag(bad))
        if bad:
            assert_same([param.detach() for param in mine], before, rtol=0, atol=0)
        else:
            give_grads(theirs, step)
            reference.step()
    assert_same(mine, theirs)
    for param in mine:
        assert ours.state[param]["step"].item() == 3.0


@case
def test_a_skipped_step_keeps_the_state_exactly(name: str, options: dict[str, Any]) -> None:
    params = make_params()
    optimizer = getattr(syncfree, name)(params, **options)
    for step in range(2):
        give_grads(params, step)
        optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    give_grads(params, 2, bad=True)
    optimizer.step(found_inf=torch.tensor([3.0]))
    after = optimizer.state_dict()["state"]
    for key, entries in before.items():
        for entry, value in entries.items():
            assert torch.equal(after[key][entry], value), (key, entry)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@contextmanager
def no_reads() -> Iterator[Watch]:
    with Watch() as watch:
        yield watch
    reads = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::equal", "aten::nonzero"}
    assert not reads & set(watch.names)


@case
def test_nothing_is_read_back_and_counters_are_tensors(name: str, options: dict[str, Any]) -> None:
    params = make_params()
    optimizer = getattr(syncfree, name)(params, **options)
    for step in range(3):
        give_grads(params, step)
        found_inf = flag(step == 1)
        with no_reads():
            optimizer.step(found_inf=found_inf)
    assert all(isinstance(optimizer.state[param]["step"], torch.Tensor) for param in params)


@case
def test_recorded_operations_do_not_grow_with_the_parameters(name: str, options: dict[str, Any]) -> None:
    def count(number: int) -> int:
        params = [torch.ones(2, requires_grad=True) for _ in range(number)]
        optimizer = getattr(syncfree, name)(params, **options)
        for param in params:
            param.grad = torch.ones(2)
        optimizer.step()
        with Watch() as watch:
            optimizer.step()
        return sum(name not in ("aten::detach",) for name in watch.names)

    assert count(2) == count(20) <= 25


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
def test_signatures_are_torchs_with_found_inf(name: str) -> None:
    ours, theirs = getattr(syncfree, name), getattr(torch.optim, name)
    assert issubclass(ours, theirs)
    mine, reference = (
        [(p.name, p.kind, p.default) for p in inspect.signature(kind.__init__).parameters.values()] for kind in (ours, theirs)
    )
    positional = [entry for entry in reference if entry[1] is not inspect.Parameter.KEYWORD_ONLY]
    assert mine[: len(positional)] == positional
    assert set(mine) == set(reference)
    assert list(inspect.signature(ours([torch.ones(1)]).step).parameters) == ["closure", "found_inf"]


@pytest.mark.parametrize("found_inf", [1.0, True, torch.zeros(2), torch.zeros(0), [0]])
def test_found_inf_must_be_a_scalar_tensor(found_inf: Any) -> None:
    params = make_params()
    give_grads(params, 0)
    before = [param.detach().clone() for param in params]
    with pytest.raises(ValueError, match="found_inf must be a tensor with one element"):
        syncfree.Adam(params).step(found_inf=found_inf)
    assert_same([param.detach() for param in params], before, rtol=0, atol=0)


@pytest.mark.parametrize("found_inf", [torch.tensor(True), torch.tensor(2), torch.tensor([float("nan")]), torch.tensor([[-1.0]])])
def test_anything_but_zero_skips(found_inf: torch.Tensor) -> None:
    params = make_params()
    give_grads(params, 0, bad=True)
    before = [param.detach().clone() for param in params]
    syncfree.AdamW(params).step(found_inf=found_inf)
    assert_same([param.detach() for param in params], before, rtol=0, atol=0)


def test_closure_runs_with_gradients_and_its_result_comes_back() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = syncfree.SGD([weight], lr=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight * 3).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    loss = optimizer.step(closure, found_inf=flag(False))
    assert loss.item() == 6.0 and weight.tolist() == [-0.5, -0.5]


def test_sparse_gradients_and_differentiable_are_refused() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2).to_sparse()
    with pytest.raises(RuntimeError, match=r"SGD does not take sparse gradients; call to_dense\(\)"):
        syncfree.SGD([weight]).step()
    for kind in (syncfree.SGD, syncfree.Adam, syncfree.AdamW):
        with pytest.raises(ValueError, match="torch.optim"):
            kind([weight], differentiable=True)


@case
def test_parameters_without_a_gradient_stand_still(name: str, options: dict[str, Any]) -> None:
    mine, theirs = make_params(), make_params()
    ours = getattr(syncfree, name)(mine, **options)
    reference = getattr(torch.optim, name)(theirs, **options)
    absent = {0: [3], 1: [0], 2: [0, 1], 3: [], 4: [0, 1, 2, 3], 5: []}
    for step, missing in absent.items():
        for params, optimizer in ((mine, ours), (theirs, reference)):
            give_grads(params, step)
            for index in missing:
                params[index].grad = None
            optimizer.step()
    assert_same(mine, theirs)


@case
def test_states_of_torch_load_and_go_back(name: str, options: dict[str, Any]) -> None:
    mine, theirs = make_params(), make_params()
    ours = getattr(syncfree, name)(mine, **options)
    reference = getattr(torch.optim, name)(theirs, **options)
    for step in range(3):
        give_grads(theirs, step)
        reference.step()
    with torch.no_grad():
        for to, source in zip(mine, theirs, strict=True):
            to.copy_(source)
    ours.load_state_dict(copy.deepcopy(reference.state_dict()))
    assert len({id(state["step"]) for state in ours.state.values() if "step" in state}) <= 1
    for step in range(3, 5):
        for params, optimizer in ((mine, ours), (theirs, reference)):
            give_grads(params, step)
            optimizer.step()
    assert_same(mine, theirs)
    reference.load_state_dict(copy.deepcopy(ours.state_dict()))
    give_grads(mine, 5)
    give_grads(theirs, 5)
    ours.step()
    reference.step()
    assert_same(mine, theirs)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_copies_go_on_alone(duplicate: Callable[[Any], Any]) -> None:
    params = make_params()
    optimizer = syncfree.AdamW(params, lr=0.1)
    give_grads(params, 0)
    optimizer.step()
    with no_reads():
        copied = copy.deepcopy(optimizer)
    copied = duplicate(optimizer)
    others = [param for group in copied.param_groups for param in group["params"]]
    for step in (1, 2):
        give_grads(others, step)
        copied.step()
    assert optimizer.state[params[0]]["step"].item() == 1.0
    assert {copied.state[param]["step"].item() for param in others} == {3.0}
    for step in (1, 2):
        give_grads(params, step)
        optimizer.step()
    assert_same(others, params)


def test_momentum_may_be_switched_on_later() -> None:
    mine, theirs = make_params(), make_params()
    ours, reference = syncfree.SGD(mine, lr=0.1, dampening=0.5), torch.optim.SGD(theirs, lr=0.1, dampening=0.5)
    for step in range(4):
        for params, optimizer in ((mine, ours), (theirs, reference)):
            optimizer.param_groups[0]["momentum"] = 0.9 if step >= 2 else 0.0
            give_grads(params, step)
            optimizer.step()
    assert_same(mine, theirs)


def test_learning_rate_schedules_apply() -> None:
    mine, theirs = make_params(), make_params()
    ours, reference = syncfree.Adam(mine, lr=0.1), torch.optim.Adam(theirs, lr=0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in (ours, reference)]
    for step in range(3):
        give_grads(mine, step)
        give_grads(theirs, step)
        ours.step(found_inf=flag(False))
        reference.step()
        for schedule in schedules:
            schedule.step()
    assert_same(mine, theirs)
