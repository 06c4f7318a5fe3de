"""A JAX function inside a lazy graph: plain, with its gradient, with a gradient of one's own, and a Pallas kernel."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.experimental import pallas
from torch import Tensor

import torch_xla.core.xla_builder as xb
from torch_xla.experimental.custom_kernel import make_kernel_from_pallas


def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Softmax attention as JAX users write it."""
    return jax.nn.softmax(q @ k.T / q.shape[-1] ** 0.5) @ v


def clipped(x: jax.Array) -> jax.Array:
    """Rounded to whole numbers, whose derivative is zero almost everywhere."""
    return jnp.round(x)


class StraightThrough(torch.autograd.Function):
    """`clipped` with a gradient of our own: as if it did nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        return xb.call_jax(clipped, (x,))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad


def add_one(source: Any, target: Any) -> None:
    """A Pallas kernel; where the device has no Pallas, it is interpreted."""
    target[...] = source[...] + 1.0


def added(x: jax.Array) -> jax.Array:
    """The kernel over a whole array."""
    return pallas.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def main() -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(5, 4) for _ in range(3)]
    found = []
    for where, function in (("cpu", torch_attention), ("xla", lambda *qkv: xb.call_jax(attention, qkv))):
        q, k, v = (tensor.to(where).requires_grad_() for tensor in inputs)
        out = function(q, k, v)
        found.append([one.detach().cpu() for one in (out, *torch.autograd.grad(out.sum(), (q, k, v)))])
    for theirs, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)

    x = torch.tensor([0.4, 1.6], device="xla", requires_grad=True)
    rounded = StraightThrough.apply(x)
    rounded.sum().backward()
    torch.testing.assert_close(rounded.detach().cpu(), torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(x.grad.cpu(), torch.ones(2))

    kernel = make_kernel_from_pallas(added, lambda x: [(x.shape, x.dtype)])
    torch.testing.assert_close(kernel(torch.zeros(1, 8, device="xla")).cpu(), torch.ones(1, 8))
    print("the JAX function, its gradients and the Pallas kernel give what they should")


def torch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same attention in torch."""
    return torch.softmax(q @ k.T / q.shape[-1] ** 0.5, dim=-1) @ v


if __name__ == "__main__":
    main()
