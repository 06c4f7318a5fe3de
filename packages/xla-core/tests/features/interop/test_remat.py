"""Values that are computed again or saved by name, against the same modules on the CPU; and custom gradients of JAX."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor, nn

import torch_xla
from xla_core.abi.texts import hlo_text
from xla_core.interop import checkpoint_name, remat, to_torch


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if x.device.type == "xla":
                x = checkpoint_name(x, f"layer{number}")
            x = torch.tanh(x)
        return x


CASES: dict[str, tuple[dict[str, Any], int]] = {
    # Of the nine products of both passes, those of the first two layers are what there is to compute again.
    "nothing": ({}, 3),
    "everything": ({"policy": "everything_saveable"}, 0),
    "dots": ({"policy": "dots_saveable"}, 0),
    "all names": ({"save": ["layer0", "layer1", "layer2"]}, 0),
    "one name": ({"save": ["layer1"]}, 2),
    "offloaded": ({"offload": ["layer0", "layer1", "layer2"]}, 0),
    "policy and names": ({"policy": "dots_with_no_batch_dims_saveable", "offload": ["layer2"]}, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_policies(name: str) -> None:
    check_policy(*CASES[name], between=False)


def test_what_was_saved_outlives_a_sync() -> None:
    check_policy(*CASES["offloaded"], between=True)


def check_policy(options: dict[str, Any], again: int, between: bool) -> None:
    torch.manual_seed(0)
    cpu = Layers()
    net = copy.deepcopy(cpu).to("xla")
    inputs = torch.randn(5, 4)
    x, given = inputs.clone().requires_grad_(), inputs.to("xla").requires_grad_()
    expected = cpu(x)
    expected.square().sum().backward()
    found = remat(net, **options)(given)
    if between:
        torch_xla.sync()
    found.square().sum().backward()
    grads = [given.grad, *[parameter.grad for parameter in net.parameters()]]
    if not between:
        assert hlo_text(grads).count(" dot(") == 9 + again
    for ours, theirs in zip([found, *grads], [expected, x.grad, *[parameter.grad for parameter in cpu.parameters()]], strict=True):
        assert ours is not None and theirs is not None
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5)


def test_nestings_constants_and_no_gradient() -> None:
    x = torch.tensor([1.0, 2.0], device="xla", requires_grad=True)

    def function(batch: dict[str, Tensor], scale: float, flags: Tensor) -> tuple[Tensor, Tensor]:
        return batch["x"] ** 2 * scale, batch["x"] > 1

    squares, large = remat(function)({"x": x}, 3.0, torch.tensor([1], device="xla"))
    squares.sum().backward()
    assert x.grad is not None
    assert (x.grad.tolist(), large.tolist(), large.requires_grad) == ([6.0, 12.0], [False, True], False)
    with torch.no_grad():
        assert not remat(torch.sin)(x).requires_grad


def test_dropout_has_one_mask_in_both_passes() -> None:
    x = torch.ones(256, device="xla", requires_grad=True)
    first, second = (remat(lambda x: nn.functional.dropout(x * x, 0.5))(x) for _ in range(2))
    first.sum().backward()
    assert x.grad is not None
    assert torch.equal(first.detach().cpu() * 2, x.grad.cpu())
    assert not torch.equal(first.cpu(), second.cpu())


def test_refusals() -> None:
    x = torch.ones(2, device="xla", requires_grad=True)
    with pytest.raises(ValueError, match="no policy that remat knows: use one of nothing_saveable"):
        remat(torch.sin, policy="some")
    with pytest.raises(ValueError, match=r"write \['layer'\]"):
        remat(torch.sin, save="layer")
    with pytest.raises(RuntimeError, match=r"may not read a value.*test_remat\.py:\d+"):
        remat(lambda x: x if x.sum().item() else -x)(x)
    with pytest.raises(RuntimeError, match=r"cuts gradients by \.data.*torch\.utils\.checkpoint"):
        remat(lambda x: x.data * x)(x)
    with pytest.raises(TypeError, match="gives tensors"):
        remat(lambda x: 3)(x)
    with pytest.raises(RuntimeError, match="second derivative"):
        [grad] = torch.autograd.grad(remat(torch.sin)(x).sum(), x, create_graph=True)
        grad.sum().backward()


@jax.custom_vjp
def rounded(x: jax.Array) -> jax.Array:
    return jnp.round(x)


rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, grad: (grad * 3,))


def test_custom_gradients_of_jax_on_tensors() -> None:
    x = torch.tensor([0.3, 1.7], device="xla", requires_grad=True)
    found = to_torch(rounded)(x)
    found.sum().backward()
    assert x.grad is not None
    assert (found.tolist(), x.grad.tolist()) == ([0.0, 2.0], [3.0, 3.0])


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch itself, at the first tangent
def test_jax_functions_under_torchs_transforms() -> None:
    x = torch.tensor([[0.3, 1.7], [0.5, -1.0]])
    on_device = x.to("xla")

    def ours(x: Tensor) -> Tensor:
        return to_torch(jnp.sin)(x) * x

    def theirs(x: Tensor) -> Tensor:
        return torch.sin(x) * x

    for transform in (
        lambda f: torch.func.vmap(f, in_dims=1, out_dims=-1),
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum())),
        lambda f: torch.func.jacrev(f),
        lambda f: torch.func.grad(lambda x: torch.func.grad(lambda x: f(x).sum())(x).sum()),
        lambda f: lambda x: torch.func.vjp(f, x)[1](x)[0],
    ):
        torch.testing.assert_close(transform(ours)(on_device).cpu(), transform(theirs)(x))
    value, tangent = torch.func.jvp(ours, (on_device,), (on_device,))
    torch.testing.assert_close(value.cpu(), theirs(x))
    torch.testing.assert_close(tangent.cpu(), (x.cos() * x + x.sin()) * x)
    with pytest.raises(RuntimeError, match=r"a transform of torch\.func wraps this tensor of shape \(2,\)"):
        torch.func.vmap(remat(torch.sin))(on_device)
