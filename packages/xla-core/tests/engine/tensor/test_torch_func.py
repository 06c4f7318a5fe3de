"""The transforms of `torch.func` over xla tensors, against the same on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.utils._pytree import tree_leaves

import torch_xla
from xla_core.base.errors import LoweringError

# torch itself, when it first computes a tangent, and in linearize
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]

Function = Callable[[Tensor], Any]


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = y[0] * 2
    return y.mul_(3).sin_()


FUNCTIONS: dict[str, Function] = {
    "in place": in_place,
    "views": lambda x: x.t().reshape(-1)[2:].view(-1, 2).sin(),
    "indices": lambda x: x[[0, 0, 2]] * x[:, [1]][:3],
    "sorted": lambda x: x.cumsum(0).sort(0)[0] * x,
    "branches": lambda x: torch.where(x > 0, x, x * x).log_softmax(-1),
}
TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "vmap": lambda f: lambda x: vmap(f, in_dims=1, out_dims=-1)(torch.stack([x, x * 2, -x], 1)),
    "vmap of grad": lambda f: lambda x: vmap(grad(lambda x: f(x).sum()))(torch.stack([x, x * 2, -x])),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x / 2,)),
    "linearize": lambda f: lambda x: linearize(f, x)[1](x / 2),
    "vjp": lambda f: lambda x: vjp(f, x)[1](torch.ones_like(f(x))),
    "jacrev": lambda f: jacrev(f),
    "jacfwd": lambda f: jacfwd(f),
    "hessian": lambda f: hessian(lambda x: f(x).sum()),
}


def check(function: Function, inputs: Tensor) -> None:
    for ours, theirs in zip(tree_leaves(function(inputs.to("xla"))), tree_leaves(function(inputs)), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_transforms(transform: Callable[[Function], Function]) -> None:
    torch.manual_seed(0)
    check(transform(in_place), torch.randn(4, 3))


@pytest.mark.long
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS.keys())
def test_functions(transform: Callable[[Function], Function], function: Function) -> None:
    torch.manual_seed(0)
    check(transform(function), torch.randn(4, 3))


def test_modules() -> None:
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 2)).eval()
    modules = {"cpu": cpu, "xla": copy.deepcopy(cpu).to("xla")}

    def all_of(x: Tensor) -> Any:
        module = modules[x.device.type]
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())

        def total(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            result: Tensor = functional_call(module, (parameters, buffers), (x,)).square().sum()
            return result

        several = stack_module_state([module, module])
        return (
            grad(total)(parameters, x),
            vmap(grad(total), (None, 0))(parameters, x[:, None]),
            jacrev(lambda parameters: functional_call(module, (parameters, buffers), (x,)))(parameters),
            vmap(lambda p, b: functional_call(module, (p, b), (x,)))(*several),
        )

    check(lambda x: [leaf.detach() for leaf in tree_leaves(all_of(x))], torch.randn(5, 3))


DRAWING: dict[str, Function] = {"mask": lambda x: nn.functional.dropout(x, 0.5), "numbers": lambda x: x * 0 + torch.rand_like(x)}


@pytest.mark.parametrize("function", DRAWING.values(), ids=DRAWING.keys())
def test_random_numbers_of_batches(function: Function) -> None:
    x = torch.ones(4, 64, device="xla")
    same, different = (vmap(function, randomness=randomness)(x).cpu() for randomness in ("same", "different"))
    assert torch.equal(same[0], same[1]) and not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(function)(x)


def test_tangents_of_what_is_written_to_stay_on_the_device(counts: Any) -> None:
    def tangent(x: Tensor) -> Tensor:
        base = torch.arange(6.0, device=x.device).reshape(2, 3)
        with forward_ad.dual_level():
            base[:, 0] = forward_ad.make_dual(x, x * 2)
            return forward_ad.unpack_dual(base).tangent

    check(tangent, torch.randn(2))
    assert counts["xla::_new_zeros_with_same_feature_meta"] == 1 and counts["aten::_new_zeros_with_same_feature_meta"] == 0


def test_text_of_tensors_in_a_transform() -> None:
    texts: dict[str, list[str]] = {}
    for device in ("cpu", "xla"):
        captured, seen = torch.tensor([1.0, 2.0]).to(device), texts.setdefault(device, [])

        def function(x: Tensor, captured: Tensor = captured, seen: list[str] = seen) -> Tensor:
            seen.extend([repr(captured), repr(x)])
            return x.sum()

        grad(function)(torch.ones(2).to(device))
        vmap(function)(torch.ones(2, 2).to(device))
    assert [text.replace(", device='xla:0'", "") for text in texts["xla"]] == texts["cpu"]
    assert texts["xla"][0] == "tensor([1., 2.], device='xla:0')"


def test_a_text_that_fails_leaves_transforms_as_they_were(custom_op: Callable[..., Function]) -> None:
    def lower(context: Any, x: Any) -> Any:
        raise KeyError("not lowered today")

    broken = custom_op("without_text(Tensor x) -> Tensor", torch.clone, lower)(torch.ones(2, device="xla"))
    with pytest.raises(LoweringError) as kept:  # with its traceback, whose frames hold their locals
        repr(broken)
    x = torch.arange(6.0, device="xla").reshape(2, 3)
    assert vmap(vmap(lambda number: number * 2))(x).tolist() == [[0, 2, 4], [6, 8, 10]], kept
    with pytest.raises(LoweringError, match="not lowered today"):
        torch_xla.sync()  # what cannot be computed is pending no more
