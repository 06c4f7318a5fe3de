"""Every kind of control flow in every mode, beside what the CPU computes of the same in that mode."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax.numpy as jnp
import pytest
import torch
from torch._higher_order_ops.map import map as map_of_torch
from torch._higher_order_ops.scan import scan as scan_of_torch
from torch._higher_order_ops.while_loop import while_loop as while_loop_of_torch

from torch_xla.core.xla_builder import call_jax
from torch_xla.experimental import eager_mode_context
from torch_xla.experimental.assume_pure import PureModule, assume_pure
from torch_xla.experimental.fori_loop import fori_loop, while_loop
from torch_xla.experimental.gradient_accumulation import gradient_accumulation
from torch_xla.experimental.scan import scan
from torch_xla.experimental.scan_layers import scan_layers
from xla_core.features.control_flow.conditional import cond

# (model, x) -> result; the model has three equal layers
Program = Callable[[torch.nn.ModuleList, torch.Tensor], Any]
MODES: dict[str, Callable[[str], Any]] = {
    "plain": lambda device: nullcontext(),
    "no_grad": lambda device: torch.no_grad(),
    "inference": lambda device: torch.inference_mode(),
    "autocast": lambda device: torch.autocast(device, dtype=torch.bfloat16),
    "eager": lambda device: eager_mode_context(True) if device == "xla" else nullcontext(),
}


class Layer(torch.nn.Module):
    """Its input plus a product, so that autocast does not change the dtype of what goes from layer to layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


def turn(model: Any, c: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return c * 0.5 + model[0].linear(c), c @ x


def turns(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    c, outputs = x, []
    for row in torch.stack([x, x * 2]):
        c, output = turn(model, c, row)
        outputs.append(output)
    return [c, torch.stack(outputs)]


def doubled(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """x, doubled until its sum is large: no gradient."""
    with torch.no_grad():
        while x.abs().sum() < 50:
            x = x * 2 + model[0].linear.bias
    return [x]


def losses(model: Any, x: torch.Tensor) -> Any:
    return [sum(model[0](part).float().square().mean() for part in torch.stack([x, x * 2])) / 2]


def accumulated(model: Any, x: torch.Tensor) -> Any:
    """The gradients are there already; the loss leads to them no more."""
    loss = gradient_accumulation(lambda part: model[0](part).float().square().mean(), (torch.stack([x, x * 2]),), model)
    return [loss]


def stacked(model: Any, x: torch.Tensor) -> Any:
    for layer in model:
        x = layer(x)
    return [x]


def looped(model: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        return while_loop(lambda v: v.abs().sum() < 50, lambda v: (v * 2 + model[0].linear.bias,), (x,))


def looped_by_torch(model: Any, x: torch.Tensor) -> Any:
    bias = model[0].linear.bias.detach()
    return while_loop_of_torch(lambda v: v.abs().sum() < 50, lambda v: (v * 2 + bias,), (x.detach(),))


def chosen(model: Any, x: torch.Tensor) -> Any:
    return cond(x.sum() > 0, lambda v: (v * 2, model[0](v)), lambda v: (v, model[1](v)), (x,))


def pure(model: Any, x: torch.Tensor) -> Any:
    both = assume_pure(lambda v, weight: (v @ weight, v + 1))
    return both(x, model[0].linear.weight)


def layer_zero(model: Any, x: torch.Tensor) -> Any:
    return [x * 2, model[0](x)] if float(x.detach().sum()) > 0 else [x, model[1](x)]


def rows(model: Any, x: torch.Tensor) -> Any:
    return [torch.stack([(row * model[0].linear.bias).sin() for row in x])]


def thrice(model: Any, x: torch.Tensor) -> Any:
    with torch.no_grad():
        return [x * 8]


# What runs on the device, and what on the CPU.
FAMILIES: dict[str, tuple[Program, Program]] = {
    "scan": (lambda model, x: scan(lambda c, row: turn(model, c, row), x, torch.stack([x, x * 2])), turns),
    "scan of torch": (
        lambda model, x: scan_of_torch(lambda c, row: turn(model, c, row), x, torch.stack([x, x * 2])),
        turns,
    ),
    "scan_layers": (lambda model, x: [scan_layers(model, x)], stacked),
    "pure scan_layers": (lambda model, x: [scan_layers(model, x, is_layer_pure=True)], stacked),
    "while_loop": (looped, doubled),
    "while_loop of torch": (looped_by_torch, doubled),
    "fori_loop": (lambda model, x: fori_loop(0, 3, lambda v: v * 2, x.detach())[1:], thrice),
    "cond": (chosen, layer_zero),
    "cond of torch": (
        lambda model, x: torch.cond(x.sum() > 0, lambda v: (v * 2, model[0](v)), lambda v: (v * 1, model[1](v)), (x,)),
        layer_zero,
    ),
    "map of torch": (lambda model, x: [map_of_torch(lambda row, bias: (row * bias).sin(), x, model[0].linear.bias)], rows),
    "gradient_accumulation": (accumulated, losses),
    "assume_pure": (pure, lambda model, x: [x @ model[0].linear.weight, x + 1]),
    "PureModule": (lambda model, x: [PureModule(model[0])(x)], lambda model, x: [model[0](x)]),
    "call_jax": (lambda model, x: [call_jax(jnp.matmul, (x, model[0].linear.weight))], lambda model, x: [x @ model[0].linear.weight]),
}
# Inference mode is much like no_grad; call_jax has the precision of JAX; to accumulate gradients without any means nothing.
LEFT_OUT = {(family, "inference") for family in FAMILIES if family not in ("scan", "scan_layers", "cond", "assume_pure")}
LEFT_OUT |= {("call_jax", "autocast"), ("gradient_accumulation", "no_grad")}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning", "ignore:The .grad attribute of a Tensor")  # torch's own
@pytest.mark.parametrize(("family", "mode"), [(family, mode) for family in FAMILIES for mode in MODES if (family, mode) not in LEFT_OUT])
def test_values_and_gradients(family: str, mode: str) -> None:
    torch.manual_seed(0)
    reference = torch.nn.ModuleList(Layer() for _ in range(3))
    start = torch.randn(3, 3).abs()
    found = []
    for device, run in zip(("xla", "cpu"), FAMILIES[family], strict=True):
        model = copy.deepcopy(reference).to(device)
        x = start.to(device).requires_grad_()
        with MODES[mode](device):
            results = list(run(model, x))
            total: Any = sum(result.float().sum() * (place + 1) for place, result in enumerate(results))
            if total.requires_grad:
                total.backward()
        grads = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in (x, *model.parameters())]
        if family == "gradient_accumulation":
            grads[0] = torch.zeros(())  # that of the data is not asked for
        found.append([result.detach().cpu() for result in (*results, *grads)])
    close = {"rtol": 0.03, "atol": 0.03} if mode == "autocast" else {"rtol": 1e-4, "atol": 1e-5}
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, **close)
