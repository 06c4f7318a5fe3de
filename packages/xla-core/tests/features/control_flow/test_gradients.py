"""Gradients through control flow where programs do more than call backward once: hooks, checkpoints, custom functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from torch_xla.core.xla_builder import call_jax
from torch_xla.experimental.assume_pure import PureModule, assume_pure
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers
from xla_core.base.errors import UnsupportedOperationError

from .test_scan import compare, in_python


def both(program: Callable[[str, Callable[..., Any]], Any]) -> None:
    """`program(device, scan)` gives the same tensors on the device as with a loop on the CPU."""
    expected, got = program("cpu", in_python), program("xla", scan)
    for one, other in zip(expected, got, strict=True):
        torch.testing.assert_close(other.detach().cpu(), one.detach(), rtol=1e-4, atol=1e-5)


class Scaled(torch.autograd.Function):
    """The first input, with gradients for both that no operation in the forward pass shows."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(weight)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (weight,) = ctx.saved_tensors
        return grad * weight, grad * 2


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("kind", ["custom", "jax", "inner scan", "pure"])
def test_tensors_from_outside_that_no_torch_function_is_given(kind: str, is_leaf: bool) -> None:
    multiplied = assume_pure(lambda a, b: a * b)

    def times(device: str, run: Any, c: Any, weight: Any) -> Any:
        if kind == "custom":
            return Scaled.apply(c, weight)
        if kind == "inner scan":
            return run(lambda d, z: (d * z, d), weight, torch.stack([c, c]))[0]
        if device == "cpu":
            return c * weight
        return multiplied(c, weight) if kind == "pure" else call_jax(jnp.multiply, (c, weight))

    def program(device: str, run: Any) -> Any:
        leaf = torch.full((2,), 0.5, device=device, requires_grad=True)
        weight = leaf if is_leaf else leaf * 3
        carry, _ = run(lambda c, x: (times(device, run, c, weight) + x, x), torch.ones(2, device=device), torch.ones(3, 2, device=device))
        carry.sum().backward()
        return [carry, leaf.grad]

    both(program)


@pytest.mark.parametrize("what", ["scan", "pure", "accumulation"])
def test_hooks_run_once_on_the_whole_gradient(what: str) -> None:
    torch.manual_seed(0)
    reference = torch.nn.Linear(2, 2)

    def program(device: str, run: Any) -> Any:
        module, seen = copy.deepcopy(reference).to(device), []
        module.weight.register_hook(lambda grad: (seen.append("hook"), grad.clamp(-0.05, 0.05) * 2)[1])
        module.weight.register_post_accumulate_grad_hook(lambda param: seen.append("after"))
        kept = module.weight * 2  # no leaf, but its gradient is kept
        kept.retain_grad()
        x = torch.full((3, 2, 2), 0.5, device=device)
        if what == "scan":
            run(lambda c, part: (torch.tanh(module(c) @ kept + part), c), torch.ones(2, 2, device=device), x)[0].sum().backward()
        elif what == "pure":
            multiplied = (lambda fn: fn) if device == "cpu" else assume_pure
            multiplied(lambda a: module(a) @ kept)(x).square().sum().backward()
        elif device == "cpu":
            (sum(module(part).square().mean() for part in x) / 3).backward()
        else:
            gradient_accumulation(lambda part: module(part).square().mean(), (x,), module)
        assert seen == ["hook", "after"]
        return [module.weight.grad, module.bias.grad, *([] if what == "accumulation" else [kept.grad])]

    both(program)


def test_accumulated_gradients_are_added_in_place() -> None:
    model = torch.nn.Linear(3, 1, bias=False).to("xla")
    data = torch.ones(2, 4, 3, device="xla")
    gradient_accumulation(lambda x: model(x).mean(), (data,), model)
    grad = model.weight.grad
    gradient_accumulation(lambda x: model(x).mean(), (data,), model)
    assert model.weight.grad is grad and grad is not None
    assert grad.tolist() == [[2.0, 2.0, 2.0]]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_around_a_scan(use_reentrant: bool) -> None:
    def program(device: str, run: Any) -> Any:
        weight = torch.full((2,), 0.5, device=device, requires_grad=True)
        start = torch.ones(2, device=device, requires_grad=True)
        xs = torch.ones(3, 2, device=device)
        whole = checkpoint(lambda a: run(lambda c, x: (torch.tanh(c * weight + x), c), a, xs)[0], start, use_reentrant=use_reentrant)
        whole.sum().backward()
        return [whole, weight.grad, start.grad]

    both(program)


def test_a_checkpoint_draws_the_same_numbers_again() -> None:
    xs = torch.ones(4, 64, device="xla", requires_grad=True)

    def fn(c: Any, x: Any) -> Any:
        kept = checkpoint(lambda a: torch.nn.functional.dropout(a, 0.5) * a, x, use_reentrant=False)
        return c + kept, kept

    carry, kept = scan(fn, torch.zeros(64, device="xla"), xs)
    carry.sum().backward()
    torch.testing.assert_close(xs.grad.cpu(), 2 * kept.detach().cpu())
    assert not torch.equal(kept[0].cpu(), kept[1].cpu())


class Checkpointed(torch.nn.Module):
    """A layer that is computed again for its gradient, when its parameters are long back in their places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return checkpoint(lambda a: torch.tanh(self.linear(a)), x, use_reentrant=False)


@pytest.mark.parametrize("what", ["layers", "pure"])
def test_checkpoints_inside_layers(what: str) -> None:
    torch.manual_seed(1)
    reference = [Checkpointed() for _ in range(3)]

    def program(device: str, run: Any) -> Any:
        layers = [copy.deepcopy(layer).to(device) for layer in reference]
        x = torch.ones(2, 3, device=device)
        if what == "layers" and device == "xla":
            x = scan_layers(layers, x)
        else:
            for layer in layers:
                x = (PureModule(layer) if device == "xla" else layer)(x)
        x.sum().backward()
        return [param.grad for layer in layers for param in layer.parameters()]

    both(program)


def test_second_derivatives_are_refused_and_first_ones_with_a_graph_are_not() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)
    pure = assume_pure(lambda a: (a * a).sin())
    results = scan(lambda c, x: (torch.sin(c * weight * x), None), weight, torch.ones(3, 2, device="xla"))[0], pure(weight)
    for result, name in zip(results, ("scan", "<lambda>"), strict=True):
        (grad,) = torch.autograd.grad(result.sum(), weight, create_graph=True)
        assert grad.isfinite().all()
        with pytest.raises(RuntimeError, match=f"{name} has no second derivative"):
            grad.sum().backward()
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad((result.sum() + grad.sum()), weight)


def test_a_graph_can_be_kept_for_a_second_pass() -> None:
    xs = torch.rand(3, 2).to("xla").requires_grad_()
    carry, outputs = scan(lambda c, x: (torch.sin(c * x), c * x), torch.ones(2, device="xla"), xs)
    total = carry.sum() + outputs.sum()
    total.backward(retain_graph=True)
    first = xs.grad.clone()
    total.backward()
    torch.testing.assert_close(xs.grad.cpu(), 2 * first.cpu())
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


def test_derivatives_inside_of_the_function() -> None:
    def by_autograd(c: Any, x: Any) -> Any:
        (grad,) = torch.autograd.grad((c * x).sin().sum(), c, create_graph=True)
        return c * 0.5 + grad, grad.sum()

    def by_transform(c: Any, x: Any) -> Any:
        return torch.func.grad(lambda a: (a * x).sin().sum())(c), torch.vmap(torch.dot)(c, x)

    torch.manual_seed(2)
    for fn in (by_autograd, by_transform):
        compare(lambda device, fn=fn: fn, torch.rand(2, 3, requires_grad=True), torch.rand(3, 2, 3, requires_grad=True))


def test_slices_that_are_used_in_many_ways() -> None:
    def program(device: str, run: Any) -> Any:
        xs = torch.linspace(0.1, 0.9, 9).reshape(3, 3).to(device).requires_grad_()
        carry, outputs = run(lambda c, x: (c * x[0] + x[1], x[0] * c), xs[0], (xs, xs.t()))
        (carry.sum() * xs.sum() + outputs.sum()).backward()
        return [carry, outputs, xs.grad]

    both(program)


def test_backward_passes_inside_are_refused_and_undone() -> None:
    weight = torch.ones(2, device="xla", requires_grad=True)

    def fn(c: Any, x: Any) -> Any:
        (weight * x).sum().backward()
        return c, x

    with pytest.raises(UnsupportedOperationError, match="backward\\(\\) in the function of scan"):
        scan(fn, torch.zeros(2, device="xla"), torch.ones(3, 2, device="xla"))
    assert weight.grad is None
