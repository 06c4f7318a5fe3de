"""Adam's update as one recorded operation: the numbers, the state and the errors are those of CPU torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import torch_xla
from xla_core.base import metrics

SHAPES = st.lists(st.sampled_from([(), (3,), (2, 3), (0, 2), (1, 4, 1)]), min_size=1, max_size=4)
OPTIONS = st.fixed_dictionaries(
    {
        "lr": st.sampled_from([0.1, 1e-3, 1]),
        "betas": st.sampled_from([(0.9, 0.999), (0.0, 0.5)]),
        "eps": st.sampled_from([1e-8, 1e-2]),
        "weight_decay": st.sampled_from([0, 0.1]),
        "amsgrad": st.booleans(),
        "maximize": st.booleans(),
        "foreach": st.sampled_from([None, True, False]),
    }
)


def one_operation_taken(run: Callable[[], object]) -> bool:
    """Whether `run` recorded the one operation."""
    before = metrics.counter("xla::adam")
    run()
    return metrics.counter("xla::adam") > before


def same(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal up to the rounding of fused products."""
    relative, absolute = (4e-2, 1e-2) if wanted.dtype is torch.bfloat16 else (1e-5, 1e-6)
    torch.testing.assert_close(actual.detach().cpu(), wanted.detach(), rtol=relative, atol=absolute)


def trained(device: str, kind: Any, options: dict[str, Any], shapes: list[Any], dtypes: list[torch.dtype], missing: list[set[int]]) -> Any:
    """Parameters, moments and steps after a step for each of `missing`, the numbers of the parameters that have no gradient then."""
    made = torch.Generator().manual_seed(0)
    weights = [
        torch.nn.Parameter(torch.randn(shape, generator=made).to(dtype).to(device)) for shape, dtype in zip(shapes, dtypes, strict=False)
    ]
    optimizer = kind(weights, **options)
    for turn, without in enumerate(missing):
        for group in optimizer.param_groups:
            group["lr"] = options["lr"] / (turn + 1)
        for number, weight in enumerate(weights):
            grad = torch.randn(weight.shape, generator=made).to(weight.dtype)
            weight.grad = None if number in without else grad.to(device)
        optimizer.step()
        if device == "xla":
            torch_xla.sync()
    state = [optimizer.state[weight].get(name) for weight in weights for name in ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")]
    return [*weights, *state]


@given(
    st.sampled_from([torch.optim.Adam, torch.optim.AdamW]),
    OPTIONS,
    SHAPES,
    st.lists(st.sampled_from([torch.float32, torch.float64, torch.bfloat16]), min_size=4, max_size=4),
    st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=3),
)
def test_training_is_that_of_the_cpu(kind: Any, options: dict[str, Any], shapes: Any, dtypes: Any, missing: list[set[int]]) -> None:
    found = trained("xla", kind, options, shapes, dtypes, missing)
    wanted = trained("cpu", kind, options, shapes, dtypes, missing)
    for actual, expected in zip(found, wanted, strict=True):
        assert (actual is None) == (expected is None)
        if expected is not None:
            assert actual.dtype == expected.dtype
            same(actual, expected)


def _weights(count: int = 2, device: str = "xla") -> list[torch.Tensor]:
    weights = [torch.full((2, 3), float(number), device=device).requires_grad_() for number in range(count)]
    for weight in weights:
        weight.grad = torch.full((2, 3), 0.5, device=device)
    return weights


@pytest.mark.parametrize("foreach", [None, True, False])
def test_it_is_one_operation(foreach: bool | None) -> None:
    assert one_operation_taken(torch.optim.Adam(_weights(), foreach=foreach).step)
    assert (
        one_operation_taken(torch.optim.Adam(torch.nn.Linear(3, 2).to("xla").parameters(), foreach=foreach).step) is False
    )  # no gradients


def test_what_is_not_as_usual_is_left_to_torch() -> None:
    assert not one_operation_taken(torch.optim.Adam(_weights(), capturable=True).step)
    assert not one_operation_taken(torch.optim.Adam(_weights(), fused=True).step)
    assert not one_operation_taken(torch.optim.Adam(_weights(), lr=torch.tensor(0.1), foreach=False).step)
    assert not one_operation_taken(torch.optim.Adam(_weights(device="cpu")).step)
    base = torch.zeros(2, 3, device="xla")
    view = base[0].requires_grad_()
    view.grad = torch.ones(3, device="xla")
    assert not one_operation_taken(torch.optim.Adam([view]).step)
    torch.testing.assert_close(base.cpu()[0], torch.full((3,), -1e-3))


class _Names(TorchDispatchMode):
    """Notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_what_torch_calls() -> None:
    weights = _weights()
    optimizer = torch.optim.Adam(weights)
    with _Names() as seen:
        optimizer.step()
    assert "aten::_foreach_lerp_" in seen.names
    alike = _weights()
    with torch.device("cpu"):  # a default device is a mode, too, and changes nothing here
        assert one_operation_taken(torch.optim.Adam(alike).step)
    for weight, other in zip(weights, alike, strict=True):
        same(weight, other.cpu())


@pytest.mark.parametrize("foreach", [True, False])
def test_backward_notices_that_a_saved_parameter_was_updated(foreach: bool) -> None:
    for device in ("cpu", "xla"):
        [weight] = _weights(1, device)
        loss = (weight * weight).sum()
        torch.optim.Adam([weight], foreach=foreach).step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_steps_that_differ_and_a_state_that_is_loaded() -> None:
    found = []
    for device in ("cpu", "xla"):
        weights = _weights(3, device)
        optimizer = torch.optim.Adam(weights, lr=0.1)
        grad, weights[1].grad = weights[1].grad, None
        optimizer.step()
        weights[1].grad = grad
        optimizer.step()
        again = torch.optim.Adam(weights, lr=0.5, amsgrad=False)
        again.load_state_dict(optimizer.state_dict())
        again.step()
        found.append([*weights, *[again.state[weight]["exp_avg_sq"] for weight in weights]])
    for wanted, actual in zip(*found, strict=True):
        same(actual, wanted)


def test_a_step_under_a_schedule_compiles_once() -> None:
    weights = [torch.full((5, 7, 3), 0.5, device="xla").requires_grad_() for _ in range(2)]
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    counts = []
    for _ in range(4):
        for weight in weights:
            weight.grad = torch.full((5, 7, 3), 0.1, device="xla")
        torch_xla.sync()
        before = metrics.counter("UncachedCompile")
        optimizer.step()
        torch_xla.sync()
        counts.append(metrics.counter("UncachedCompile") - before)
        schedule.step()
    assert counts == [1, 0, 0, 0]
