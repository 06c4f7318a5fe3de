"""Loss scaling and autocast, against `torch.amp` on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torch_xla import amp

SETTINGS: dict[str, Any] = {"init_scale": 8.0, "growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 2}
BAD = [False, True, False, False, False, True, True, False]


class Plain(torch.optim.SGD):
    """An optimizer that cannot skip by itself."""


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func._schema.name in ("aten::_local_scalar_dense", "aten::is_nonzero")
        return func(*args, **(kwargs or {}))


def backward(scaler: torch.amp.GradScaler, weights: list[torch.Tensor], step: int, bad: bool) -> None:
    for weight in weights:
        weight.grad = None
    generator = torch.Generator().manual_seed(step)
    loss = sum(((weight * torch.randn(weight.shape, generator=generator)).sum() for weight in weights), torch.zeros(()))
    scaler.scale(loss * torch.inf if bad else loss).backward()  # type: ignore[no-untyped-call]


def make_weights() -> list[torch.Tensor]:
    return [torch.full(shape, 2.0, requires_grad=True) for shape in ((3,), (2, 2), (0,))]


def run(scaler: torch.amp.GradScaler, kind: Any, unscale: bool = False) -> tuple[list[torch.Tensor], list[float], list[int]]:
    weights = make_weights()
    optimizer = kind(weights, lr=0.1, momentum=0.9)
    scales, reads = [], []
    for step, bad in enumerate(BAD):
        backward(scaler, weights, step, bad)
        with Reads() as seen:
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        reads.append(seen.count)
        scales.append(scaler.get_scale())
    return weights, scales, reads


@pytest.mark.parametrize("unscale", [False, True])
def test_sync_free_optimizers_need_no_read(unscale: bool) -> None:
    weights, scales, reads = run(amp.GradScaler(**SETTINGS), amp.syncfree.SGD, unscale)
    expected, expected_scales, _ = run(torch.amp.GradScaler("cpu", **SETTINGS), torch.optim.SGD, unscale)
    torch.testing.assert_close(weights, expected)
    assert scales == expected_scales
    assert set(reads) == {0}


def test_other_optimizers_cost_one_read_per_step_as_in_torch() -> None:
    weights, scales, reads = run(amp.GradScaler(**SETTINGS), Plain)
    expected, expected_scales, _ = run(torch.amp.GradScaler("cpu", **SETTINGS), Plain)
    torch.testing.assert_close(weights, expected)
    assert scales == expected_scales
    assert set(reads) == {1}


def test_use_zero_grad_steps_on_zeros_without_a_read() -> None:
    weights, scales, reads = run(amp.GradScaler(**SETTINGS, use_zero_grad=True), Plain)
    _, expected_scales, _ = run(torch.amp.GradScaler("cpu", **SETTINGS), Plain)
    expected = make_weights()
    optimizer = Plain(expected, lr=0.1, momentum=0.9)
    plain = torch.amp.GradScaler("cpu", enabled=False)
    for step, bad in enumerate(BAD):
        backward(plain, expected, step, bad)
        if bad:
            for weight in expected:
                weight.grad = torch.zeros_like(weight)
        optimizer.step()
    torch.testing.assert_close(weights, expected)
    assert scales == expected_scales and set(reads) == {0}


def test_defaults_and_state_are_torchs() -> None:
    ours, theirs = amp.GradScaler(), torch.amp.GradScaler("cpu")
    assert isinstance(ours, torch.amp.GradScaler) and ours.state_dict() == theirs.state_dict()
    run(ours, amp.syncfree.SGD)
    run(theirs, torch.optim.SGD)
    assert ours.state_dict() == theirs.state_dict()
    restored = amp.GradScaler()
    restored.load_state_dict(ours.state_dict())
    assert restored.get_scale() == ours.get_scale() == 2.0**13


def test_the_scale_stops_growing_before_infinity() -> None:
    scaler = amp.GradScaler(init_scale=3e38, growth_interval=1)
    weight = torch.ones(1, requires_grad=True)
    optimizer = amp.syncfree.SGD([weight])
    scaler.scale(torch.zeros(()))
    weight.grad = torch.zeros(1)
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == pytest.approx(3e38)


def test_disabled_passes_everything_through() -> None:
    scaler = amp.GradScaler(enabled=False)
    weight = torch.ones(1, requires_grad=True)
    optimizer = amp.syncfree.SGD([weight], lr=1.0)
    loss = weight.sum()
    assert scaler.scale(loss) is loss
    loss.backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    scaler.update()
    assert weight.item() == 0.0 and scaler.get_scale() == 1.0 and scaler.state_dict() == {}


def test_order_of_calls_is_checked() -> None:
    scaler = amp.GradScaler()
    weight = torch.ones(1, requires_grad=True)
    optimizer = amp.syncfree.SGD([weight])
    with pytest.raises(AssertionError, match="_scale is None"):
        scaler.update()
    backward(scaler, [weight], 0, False)
    with pytest.raises(AssertionError, match="before it"):
        scaler.update()
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimizer)
    scaler.update(4.0)
    assert scaler.get_scale() == 4.0


def test_unsuitable_gradients_are_refused() -> None:
    half = torch.ones(1, dtype=torch.float16, requires_grad=True)
    scaler = amp.GradScaler()
    scaler.scale(torch.ones(()))
    half.grad = torch.ones_like(half)
    with pytest.raises(ValueError, match="FP16"):
        scaler.unscale_(amp.syncfree.SGD([half]))
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2).to_sparse()
    with pytest.raises(RuntimeError, match="dense gradients only"):
        scaler.unscale_(torch.optim.SGD([weight]))


def test_large_double_gradients_are_finite() -> None:
    scaler = amp.GradScaler()
    weights = [torch.ones(2, dtype=dtype, requires_grad=True) for dtype in (torch.float64, torch.float32, torch.complex64)]
    scaler.scale(torch.ones(()))
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    weights[0].grad.mul_(1e300)  # type: ignore[union-attr]
    optimizer = amp.syncfree.SGD(weights)
    scaler.unscale_(optimizer)
    assert scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"] == {torch.device("cpu"): 0.0}


def test_several_optimizers_share_the_scale() -> None:
    scaler = amp.GradScaler(init_scale=8.0)
    good, bad = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    optimizers = [amp.syncfree.SGD([weight], lr=1.0) for weight in (good, bad)]
    scaler.scale(good.sum() + bad.sum() * torch.nan).backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    assert (good.item(), bad.item(), scaler.get_scale()) == (0.0, 1.0, 4.0)


@pytest.mark.parametrize("device", ["xla", "xla:0", torch.device("xla:1")])
def test_autocast_is_torchs_with_bfloat16(device: Any) -> None:
    context = amp.autocast(device)
    assert isinstance(context, torch.autocast) and context.device == "xla" and context.fast_dtype is torch.bfloat16
    with context:
        assert torch.is_autocast_enabled("xla") and torch.get_autocast_dtype("xla") is torch.bfloat16
        with amp.autocast(device, enabled=False):
            assert not torch.is_autocast_enabled("xla")
    assert not torch.is_autocast_enabled("xla")

    @amp.autocast(device)  # type: ignore[untyped-decorator]
    def inside() -> bool:
        return torch.is_autocast_enabled("xla")

    assert inside()


def test_autocast_unsupported_dtype_warns_and_disables() -> None:
    with pytest.warns(UserWarning, match="dtype is not supported. Disabling autocast"):
        context = amp.autocast("xla", dtype=torch.float64)
    with context:
        assert not torch.is_autocast_enabled("xla")


def test_autocast_elsewhere_names_the_alternative() -> None:
    with pytest.raises(ValueError, match=r"use torch.autocast\('cpu'\) there"):
        amp.autocast("cpu")
