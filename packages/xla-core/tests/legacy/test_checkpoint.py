"""Checkpointing, with a CPU stand-in for the device's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from torch_xla.utils.checkpoint import CheckpointFunction, checkpoint, chkpt_status, get_device_states, set_device_states
from xla_core.legacy import checkpoint as implementation

both = pytest.mark.parametrize("use_reentrant", [True, False])


class Device:
    """The API's functions, with a barrier that only notes what it got and a counter as random state."""

    def __init__(self) -> None:
        self.state = 101
        self.barriers: list[list[torch.Tensor]] = []

    def optimization_barrier_(self, tensors: list[torch.Tensor]) -> None:
        assert all(tensor.is_leaf and not tensor.requires_grad for tensor in tensors)
        self.barriers.append(tensors)

    def get_rng_state(self, device: Any = None) -> int:
        return self.state

    def set_rng_state(self, seed: int, device: Any = None) -> None:
        self.state = seed

    @contextmanager
    def fork_rng(self, device: Any = None, enabled: bool = True) -> Iterator[None]:
        before = self.state
        try:
            yield
        finally:
            self.state = before

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        self.state += 1
        return torch.full_like(like, float(self.state))


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Every tensor counts as one on a device."""
    device = Device()
    monkeypatch.setattr(implementation, "_model", lambda: device)
    monkeypatch.setattr(implementation, "_on_xla", lambda value: isinstance(value, torch.Tensor))
    return device


def gradients(run: Callable[..., Any], weight: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    leaves = [value.detach().clone().requires_grad_() for value in (weight, x)]
    out = run(*leaves)
    (out.sin() * 2).sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


@both
def test_values_and_gradients_are_those_without(use_reentrant: bool, device: Device) -> None:
    layer, runs = torch.nn.Linear(3, 3), []

    def block(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        out: torch.Tensor = layer(torch.tanh(x @ weight)) ** 2
        return out

    weight, x = torch.randn(3, 3), torch.randn(2, 3)
    expected = [*gradients(block, weight, x), layer.weight.grad]
    layer.weight.grad = None
    runs.clear()
    got = gradients(lambda *args: checkpoint(block, *args, use_reentrant=use_reentrant), weight, x)
    torch.testing.assert_close([*got, layer.weight.grad], expected)
    assert len(runs) == 2 and len(device.barriers) == 1


def test_the_barrier_holds_copies_of_inputs_and_incoming_gradients(device: Device) -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[torch.Tensor] = []

    def block(value: torch.Tensor, factor: int) -> torch.Tensor:
        seen.append(value)
        return value * value * factor

    out = checkpoint(block, x, 3)
    out.backward(torch.full((2,), 0.5))
    assert x.grad is not None and x.grad.tolist() == [3.0, 3.0]
    (barrier,) = device.barriers
    assert [tensor.tolist() for tensor in barrier] == [[1.0, 1.0], [0.5, 0.5]]
    assert all(tensor.data_ptr() not in (x.data_ptr(), x.grad.data_ptr()) for tensor in barrier)
    assert seen[1].data_ptr() == barrier[0].data_ptr()


def test_without_reentrance_nested_arguments_go_behind_the_barrier(device: Device) -> None:
    x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    seen: list[int] = []

    def block(parts: dict[str, torch.Tensor], *, scale: torch.Tensor) -> torch.Tensor:
        seen.append(parts["x"].data_ptr())
        return (parts["x"] * parts["y"]).exp() * scale

    out = checkpoint(block, {"x": x, "y": y}, use_reentrant=False, scale=torch.tensor(2.0))
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2.0 * 3.0 * torch.full((2,), 3.0).exp())
    assert [tensor.tolist() for tensor in device.barriers[0]] == [[1.0, 1.0], [3.0, 3.0], 2.0]
    assert seen[0] == x.data_ptr() != seen[1]


@both
@pytest.mark.parametrize("preserve", [True, False])
def test_random_states_are_replayed_and_restored(use_reentrant: bool, preserve: bool, device: Device) -> None:
    drawn: list[tuple[float, float]] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        cpu, own = torch.rand(()), device.noise(x)
        drawn.append((cpu.item(), own[0].item()))
        return (x * cpu * own).exp()

    x = torch.full((2,), 1e-3, requires_grad=True)
    torch.manual_seed(5)
    out = checkpoint(block, x, use_reentrant=use_reentrant, preserve_rng_state=preserve)
    torch.manual_seed(9)
    expected_next = torch.rand(())
    torch.manual_seed(9)
    device.state = 500
    out.sum().backward()
    if preserve:
        assert drawn[0] == drawn[1] and device.state == 500
        assert torch.rand(()) == expected_next
    else:
        assert drawn[0][0] != drawn[1][0] and drawn[1][1] == 501.0 == device.state


@both
def test_autocast_of_the_forward_pass_applies_again(use_reentrant: bool) -> None:
    dtypes: list[torch.dtype] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        out = x @ x
        dtypes.append(out.dtype)
        return out.float().exp()

    x = torch.eye(2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = checkpoint(block, x, use_reentrant=use_reentrant)
    out.sum().backward()
    assert dtypes == [torch.bfloat16] * 2


@both
def test_checkpoints_nest(use_reentrant: bool, device: Device) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x

    def outer(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        inside: torch.Tensor = checkpoint(inner, x * weight, use_reentrant=use_reentrant)
        return inside.cos()

    weight, x = torch.randn(3), torch.randn(3)
    expected = gradients(lambda w, v: inner(v * w).cos(), weight, x)
    got = gradients(lambda *args: checkpoint(outer, *args, use_reentrant=use_reentrant), weight, x)
    torch.testing.assert_close(got, expected)


def test_several_outputs_some_without_a_tensor(device: Device) -> None:
    x = torch.arange(3.0, requires_grad=True)
    first, note, second = checkpoint(lambda v: (v * v, "note", v * 3), x)
    assert note == "note"
    (first.sum() + 2 * second.sum()).backward()
    assert x.grad is not None and x.grad.tolist() == [6.0, 8.0, 10.0]


def test_reentrant_limits_are_explained() -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="does not take scale; pass use_reentrant=False"):
        checkpoint(torch.sin, x, scale=2)
    with pytest.raises(RuntimeError, match="pass use_reentrant=False"):
        torch.autograd.grad(checkpoint(torch.sin, x).sum(), x)
    with pytest.raises(RuntimeError, match="checkpoint\\(\\) is not needed"):
        checkpoint(lambda v: v.detach(), x).sum().backward()
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        checkpoint(torch.sin, x.detach())


def test_torchs_options_pass_through_without_reentrance(device: Device) -> None:
    entered: list[str] = []

    @contextmanager
    def note(name: str) -> Iterator[None]:
        entered.append(name)
        yield

    x = torch.ones(2, requires_grad=True)
    out = checkpoint(torch.exp, x, use_reentrant=False, context_fn=lambda: (note("forward"), note("again")), determinism_check="none")
    out.sum().backward()
    assert entered == ["forward", "again"]


def test_extract_tensors_from_list() -> None:
    a, b = torch.ones(1), torch.nn.Parameter(torch.ones(1))
    assert [id(t) for t in CheckpointFunction._extract_tensors_from_list([1, a, None, "x", b, [a]])] == [id(a), id(b)]
    assert CheckpointFunction._extract_tensors_from_list([]) == []


def test_cpu_tensors_need_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Any:
        raise AssertionError("the device was asked for")

    monkeypatch.setattr(implementation, "_model", never)
    x = torch.ones(2, requires_grad=True)
    checkpoint(torch.exp, x).sum().backward()
    checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * torch.ones(2).exp())


@both
def test_on_the_device(use_reentrant: bool) -> None:
    torch.manual_seed(0)
    start, found = torch.randn(3, 3), []
    for place in ("cpu", "xla"):
        weight, x = (start.clone().to(place).detach().requires_grad_() for _ in range(2))
        out = checkpoint(lambda a, b: torch.tanh(a @ b).sin(), weight, x, use_reentrant=use_reentrant)
        out.square().sum().backward()
        assert weight.grad is not None
        assert x.grad is not None
        found.append([out.detach().cpu(), weight.grad.cpu(), x.grad.cpu()])
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@both
def test_random_numbers_of_the_device_are_drawn_again(use_reentrant: bool) -> None:
    x = torch.ones(64, device="xla", requires_grad=True)
    out = checkpoint(lambda a: torch.dropout(a * 1, 0.5, True), x, use_reentrant=use_reentrant)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad.cpu(), out.detach().cpu())


@both
def test_status_says_whether_the_function_is_repeated(use_reentrant: bool, device: Device) -> None:
    seen: list[bool] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        seen.append(chkpt_status.in_chkpt_bwd)
        return x.exp()

    checkpoint(block, torch.ones(2, requires_grad=True), use_reentrant=use_reentrant).sum().backward()
    assert seen == [False, True] and not chkpt_status.in_chkpt_bwd


def test_device_states_come_back() -> None:
    x = torch.ones(2, device="xla")
    devices, states = get_device_states(x, 3, torch.ones(2), x[0])
    assert devices == [x.device] and len(states) == 1
    first = torch.rand(3, device="xla").cpu()
    set_device_states(devices, states)
    torch.testing.assert_close(torch.rand(3, device="xla").cpu(), first, rtol=0, atol=0)
    assert get_device_states(torch.ones(2)) == ([], [])
    with pytest.raises(ValueError, match="shorter"):
        set_device_states(devices, [])
