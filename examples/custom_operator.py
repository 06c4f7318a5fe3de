"""A new operator in one file: stock torch knows it everywhere, device `xla` compiles it, autograd differentiates it.

`root_mean_square(x, weight, eps)` normalises rows. torch needs a schema, a CPU kernel and shapes; the `xla` device one lowering more.
"""

from __future__ import annotations

from typing import Any

import torch
from jax import lax
from torch import Tensor

from xla_core.abi.metrics import snapshot
from xla_core.abi.operators import Context, OpSpec, register_op, scalar


@torch.library.custom_op("example::root_mean_square", mutates_args=(), device_types="cpu")
def root_mean_square(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The CPU kernel."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


@root_mean_square.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(x)


def lowering(context: Context, x: Any, weight: Any, eps: Any) -> Any:
    """The same in JAX: returns exactly `context.shape` and `context.dtype`. eps is an input, so that changing it recompiles nothing."""
    last = x.ndim - 1
    mean = lax.reduce_sum(x * x, (last,)) / x.shape[last]
    scale = lax.rsqrt(mean + scalar(eps, context.dtype))
    return x * lax.broadcast_in_dim(scale, x.shape, tuple(range(last))) * lax.broadcast_in_dim(weight, x.shape, (last,))


register_op(OpSpec("example::root_mean_square", lowering, scalars=frozenset({"eps"})))


def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """What the backward pass needs."""
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    """Ordinary torch operations: recorded on `xla` like any other."""
    x, weight = ctx.saved_tensors
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
    wide = grad * weight
    towards_x = scale * wide - scale**3 * x * (wide * x).mean(-1, keepdim=True)
    return towards_x, (grad * x * scale).reshape(-1, weight.numel()).sum(0), None


root_mean_square.register_autograd(backward, setup_context=remember)


def main() -> None:
    torch.manual_seed(0)
    data, scales = torch.randn(4, 8), torch.rand(8)
    found: dict[str, list[Tensor]] = {}
    for device in map(torch.device, ("cpu", "xla")):
        x, weight = (tensor.to(device).requires_grad_() for tensor in (data, scales))
        out = root_mean_square(x, weight, 1e-6)
        gradients = torch.autograd.grad(out.square().sum(), (x, weight))
        found[device.type] = [tensor.detach().cpu() for tensor in (out, *gradients)]
    for mine, theirs in zip(found["xla"], found["cpu"], strict=True):
        torch.testing.assert_close(mine, theirs)
    counters = snapshot().counters
    print(f"same values and gradients as on the CPU; recorded {counters['xla::root_mean_square']} time, no fallbacks")
    fallbacks = [name for name in counters if name.startswith(("aten::", "example::"))]
    if fallbacks:
        raise SystemExit(f"ran on the CPU: {fallbacks}")


if __name__ == "__main__":
    main()
