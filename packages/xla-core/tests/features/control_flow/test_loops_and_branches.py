"""`while_loop`, `fori_loop`, `cond` and torch's higher-order operators against Python on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._higher_order_ops.scan import scan as scan_of_torch
from torch._higher_order_ops.while_loop import while_loop as while_loop_of_torch

import torch_xla
from torch_xla.experimental import eager_mode_context
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from xla_core.base.errors import GraphBreakError
from xla_core.features.control_flow.conditional import cond


@pytest.fixture(params=[False, True], ids=["lazy", "eager"], autouse=True)
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    with eager_mode_context(True) if request.param else nullcontext():
        yield


def test_a_loop_ends_where_the_data_says() -> None:
    results = []
    for device in ("cpu", "xla"):
        state = torch.tensor(27, device=device), torch.zeros((), dtype=torch.int64, device=device)
        if device == "cpu":
            while state[0] != 1:
                state = torch.where(state[0] % 2 == 0, state[0] // 2, 3 * state[0] + 1), state[1] + 1
        else:
            state = while_loop(lambda n, k: n != 1, lambda n, k: (torch.where(n % 2 == 0, n // 2, 3 * n + 1), k + 1), state)
        results.append([int(each) for each in state])
    assert results[0] == results[1] == [1, 111]


def test_additional_inputs_stay_and_tensors_from_outside_are_used() -> None:
    weight, bias = torch.full((2, 2), 0.5, device="xla"), torch.ones(2, device="xla")
    turns, value = while_loop(
        lambda i, v, b: i < 3,
        lambda i, v, b: (i + 1, v @ weight + b),
        (torch.tensor(0, device="xla"), torch.ones(1, 2, device="xla")),
        (bias,),
    )
    expected = torch.ones(1, 2)
    for _ in range(3):
        expected = expected @ weight.cpu() + 1
    assert int(turns) == 3
    torch.testing.assert_close(value.cpu(), expected)


def test_loops_over_a_range() -> None:
    left, value = fori_loop(2, 6, lambda v: v * 2, torch.ones(2, device="xla"))
    assert (int(left), value.tolist()) == (0, [16.0, 16.0])
    bounds = torch.tensor([0], dtype=torch.int32, device="xla"), torch.tensor([3], dtype=torch.int32, device="xla")
    left, first, second = fori_loop(*bounds, lambda a, b: (b, a + b), *torch.ones(2, 1, device="xla").unbind())
    assert (left.dtype, first.tolist(), second.tolist()) == (torch.int32, [3.0], [5.0])
    assert fori_loop(3, 3, lambda v: v + 1, torch.zeros(1, device="xla"))[1].tolist() == [0.0]


def test_random_numbers_differ_between_turns() -> None:
    torch.manual_seed(5)
    _, sums, squares = fori_loop(
        0, 200, lambda s, q: (lambda r: (s + r, q + r * r))(torch.rand(64, device="xla")), *torch.zeros(2, 64, device="xla").unbind()
    )
    mean = sums.cpu() / 200
    assert abs(float(mean.mean()) - 0.5) < 0.02
    assert float((squares.cpu() / 200 - mean**2).min()) > 0.05


def test_loops_have_no_gradient_and_say_so() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    _, value = fori_loop(0, 2, lambda v: v * weight * 2, torch.ones(2, device="xla"))
    assert value.tolist() == [4.0, 4.0]
    with pytest.raises(RuntimeError, match="experimental.scan"):
        value.sum().backward()
    with torch.no_grad():
        assert not fori_loop(0, 2, lambda v: v * weight, torch.ones(2, device="xla"))[1].requires_grad


def test_wrong_loops() -> None:
    one = torch.ones(2, device="xla")
    with pytest.raises(ValueError, match="like those that it carries"):
        while_loop(lambda v: v.sum() < 3, lambda v: (v[:1],), (one,))
    with pytest.raises(ValueError, match="one element, not pred\\[2\\]"):
        while_loop(lambda v: v < 3, lambda v: (v,), (one,))
    with pytest.raises(TypeError, match="a tuple of tensors, got a Tensor"):
        while_loop(lambda v: v.sum() < 3, lambda v: (v,), one)
    with pytest.raises(TypeError, match="from one integer to another, got 2.5"):
        fori_loop(0, 2.5, lambda v: v, one)
    with pytest.raises(GraphBreakError, match="read a value"):
        while_loop(lambda v: bool(v.sum() < 3), lambda v: (v,), (one,))
    with pytest.raises(TypeError, match="got a int"):
        while_loop(lambda v: v < 3, lambda v: (v + 1,), (0,))
    with pytest.raises(RuntimeError, match="not an XLA tensor"):
        while_loop(lambda v: v.sum() < 3, lambda v: (v,), (torch.ones(2),))
    with pytest.raises(ValueError, match="needs a tensor"):
        fori_loop(0, 2, lambda: None)


@pytest.mark.parametrize("positive", [True, False])
def test_a_branch_has_the_gradient_of_the_one_that_ran(positive: bool) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)]
    start = torch.randn(2, 3)
    found = []
    for device in ("cpu", "xla"):
        first, second = (copy.deepcopy(layer).to(device) for layer in layers)
        x = start.clone().to(device).detach().requires_grad_()
        choose = torch.tensor(1.0 if positive else -1.0, device=device) > 0
        branches = (lambda a, f=first: (torch.tanh(f(a)) * a, a.sum())), (lambda a, s=second: (s(a).exp(), a.prod()))
        results = cond(choose, *branches, (x,)) if device == "xla" else branches[0 if positive else 1](x)
        (results[0].square().sum() + results[1]).backward()
        grads = [p.grad for layer in (first, second) for p in layer.parameters()]
        found.append([results[0].detach(), results[1].detach(), x.grad, *grads])
    for expected, got in zip(*found, strict=True):
        want = torch.zeros_like(got, device="cpu") if expected is None else expected  # the one that did not run has zeros
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


def test_conditions_check_their_data_only_where_they_run() -> None:
    table, place = torch.arange(3.0, device="xla"), torch.tensor([7], device="xla")
    branches = (lambda i: table.gather(0, i)), (lambda i: table[:1])
    assert cond(torch.tensor(False, device="xla"), *branches, (place,)).tolist() == [0.0]
    with pytest.raises(RuntimeError, match="index 7 is out of bounds"):
        cond(torch.tensor(True, device="xla"), *branches, (place,)).cpu()


def test_wrong_conditions() -> None:
    one, yes = torch.ones(2, device="xla"), torch.tensor(True, device="xla")
    with pytest.raises(ValueError, match="alike results"):
        cond(yes, lambda a: a, lambda a: a[:1], (one,))
    with pytest.raises(ValueError, match="nest their results differently"):
        cond(yes, lambda a: (a,), lambda a: a, (one,))
    with pytest.raises(RuntimeError, match="one element"):
        cond(one > 0, lambda a: a, lambda a: a, (one,))
    assert cond(True, lambda a: a, lambda a: a * 2, (one,)) is one


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
def test_the_operators_of_torch() -> None:
    x = torch.arange(3.0, device="xla", requires_grad=True)
    turns, value = while_loop_of_torch(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0, device="xla"), x.detach()))
    assert (int(turns), value.tolist()) == (3, [0.0, 8.0, 16.0])
    carry, outputs = scan_of_torch(lambda c, a: (c + a * a, c.clone()), torch.zeros((), device="xla"), x)
    carry.backward()
    assert (float(carry.detach()), outputs.tolist(), x.grad.tolist()) == (5.0, [0.0, 0.0, 1.0], [0.0, 2.0, 4.0])
    x.grad = None
    [chosen] = torch.cond(x.sum() > 2, lambda a: (a * 3,), lambda a: (a - 1,), (x,))
    chosen.sum().backward()
    assert (chosen.tolist(), x.grad.tolist()) == ([0.0, 3.0, 6.0], [3.0, 3.0, 3.0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # torch's own
def test_the_operators_of_torch_inside_each_other_and_with_constants_of_their_own() -> None:
    def inner(x: Any) -> Any:
        return while_loop_of_torch(lambda j, y: j < 2, lambda j, y: (j + 1, y + 1), (torch.tensor(0, device=x.device), x))[1]

    found = [
        torch.cond(torch.tensor(True, device=device), lambda x: inner(x) + torch.tensor(1.0, device=x.device) * 2, lambda x: x * 3, (x,))
        for device in ("cpu", "xla")
        for x in [torch.ones(2, device=device)]
    ]
    torch.testing.assert_close(found[1].cpu(), found[0])


def test_a_condition_inside_torch_compile() -> None:
    @torch.compile(backend="openxla")
    def choose(flag: Any, x: Any) -> Any:
        return torch.cond(flag, lambda a: a.sin(), lambda a: a.cos(), (x,))

    x = torch.ones(2)
    for flag in (True, False):
        got = choose(torch.tensor(flag, device="xla"), x.to("xla"))
        torch.testing.assert_close(got.cpu(), x.sin() if flag else x.cos())
    torch_xla.sync()
