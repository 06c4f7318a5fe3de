"""Libraries of JAX on torch's side and the other way: optax trains a torch module, modules of flax and equinox train under torch."""

from __future__ import annotations

from typing import Any

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx
from torch import nn

from xla_core.abi.tensors import tensor_from_buffer
from xla_core.interop import to_jax, to_torch

INPUTS = np.random.default_rng(0).standard_normal((32, 4), np.float32)


def test_optax_trains_as_torch_does() -> None:
    torch.manual_seed(0)
    cpu = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model.load_state_dict(cpu.state_dict())
    apply, parameters, buffers = to_jax(model.to("xla"))
    optimizer = optax.adam(1e-2)
    labels = INPUTS.sum(1, keepdims=True)

    @jax.jit
    def step(parameters: Any, state: Any) -> Any:
        grads = jax.grad(lambda parameters: ((apply(parameters, buffers, INPUTS)[0] - labels) ** 2).mean())(parameters)
        updates, state = optimizer.update(grads, state, parameters)
        return optax.apply_updates(parameters, updates), state

    state = optimizer.init(parameters)
    theirs = torch.optim.Adam(cpu.parameters(), 1e-2)
    for _ in range(20):
        parameters, state = step(parameters, state)
        theirs.zero_grad()
        nn.functional.mse_loss(cpu(torch.tensor(INPUTS)), torch.tensor(labels)).backward()
        theirs.step()
    model.load_state_dict({name: tensor_from_buffer(array) for name, array in parameters.items()})
    for name, parameter in cpu.named_parameters():
        torch.testing.assert_close(model.get_parameter(name).detach().cpu(), parameter.detach(), rtol=1e-3, atol=1e-4)


def test_a_module_of_flax_under_torchs_autograd() -> None:
    module = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    graph, state = nnx.split(module)
    arrays = nnx.to_pure_dict(state)
    tensors = jax.tree.map(lambda array: tensor_from_buffer(array).requires_grad_(), arrays)

    def apply(tensors: Any, x: jax.Array) -> jax.Array:
        replaced = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(replaced, tensors)
        return nnx.merge(graph, replaced)(x)

    result = to_torch(apply)(tensors, torch.tensor(INPUTS, device="xla"))
    result.sum().backward()
    np.testing.assert_allclose(result.detach().cpu(), module(jnp.asarray(INPUTS)), rtol=1e-5, atol=1e-6)
    expected = jax.grad(lambda arrays: apply(arrays, jnp.asarray(INPUTS)).sum())(arrays)
    for name, grad in expected.items():
        np.testing.assert_allclose(tensors[name].grad.cpu(), grad, rtol=1e-5, atol=1e-5)


def test_a_module_of_equinox_under_torchs_autograd() -> None:
    module = equinox.nn.MLP(4, 2, 8, 1, key=jax.random.key(1))
    arrays, rest = equinox.partition(module, equinox.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    tensors = [tensor_from_buffer(leaf).requires_grad_() for leaf in leaves]

    def apply(leaves: list[jax.Array], x: jax.Array) -> jax.Array:
        return jax.vmap(equinox.combine(jax.tree.unflatten(tree, leaves), rest))(x)

    result = to_torch(apply)(tensors, torch.tensor(INPUTS, device="xla"))
    result.sum().backward()
    np.testing.assert_allclose(result.detach().cpu(), jax.vmap(module)(INPUTS), rtol=1e-5, atol=1e-6)
    expected = jax.grad(lambda leaves: apply(leaves, INPUTS).sum())(leaves)
    for tensor, grad in zip(tensors, expected, strict=True):
        assert tensor.grad is not None
        np.testing.assert_allclose(tensor.grad.cpu(), grad, rtol=1e-5, atol=1e-5)
