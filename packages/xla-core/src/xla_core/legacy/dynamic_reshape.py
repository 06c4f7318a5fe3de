"""Views and expansions in which one size is another tensor's: the operations `torch.ops.xla.dynamic_view` and `dynamic_expand`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.table import Context, OpSpec, register_op

# Held for good: torch takes the operators back when their library is collected.
_LIBRARY: Any = torch.library.Library("xla", "FRAGMENT")


def dynamic_expand(input: torch.Tensor, size: Sequence[int], src_tensor: torch.Tensor, src_dim: int, target_dim: int) -> torch.Tensor:
    """`input` expanded to `size`, whose entry `target_dim` is the size of `src_tensor` along `src_dim`; a new tensor.

    Raises IndexError for dimensions that are not there, RuntimeError for sizes that `input` does not expand to.
    """
    expanded: torch.Tensor = EXPAND(input, size, src_tensor, src_dim, target_dim)
    return expanded


def dynamic_view(
    input: torch.Tensor, size: Sequence[int], src_tensor: torch.Tensor, src_dim: int, target_dim: int, mul_scaler: int = 1
) -> torch.Tensor:
    """`input` in the shape `size`, whose entry `target_dim` is `mul_scaler` times the size of `src_tensor` along `src_dim`; a new tensor.

    Raises IndexError for dimensions that are not there, RuntimeError for a shape with another number of elements.
    """
    viewed: torch.Tensor = VIEW(input, size, src_tensor, src_dim, target_dim, int(mul_scaler))
    return viewed


def _xla_mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Raises UnsupportedOperationError: shapes of recorded programs are fixed."""
    raise UnsupportedOperationError(
        f"a recorded program has fixed shapes, so that dimension {dim} of a tensor cannot be marked as open: "
        "export with torch.export, dynamic_shapes=torch.export.Dim(...), and torch_xla.stablehlo.exported_program_to_stablehlo"
    )


def dynamic_expand_meta(input: torch.Tensor, size: Sequence[int], src_tensor: torch.Tensor, src_dim: int, target_dim: int) -> torch.Tensor:
    """An empty tensor like the result: what tracers see of `dynamic_expand`."""
    shape = _resolved(size, src_tensor, src_dim, target_dim, 1)
    return input.new_empty(input.expand(shape).shape)


def dynamic_view_meta(
    input: torch.Tensor, size: Sequence[int], src_tensor: torch.Tensor, src_dim: int, target_dim: int, mul_scaler: int
) -> torch.Tensor:
    """An empty tensor like the result: what tracers see of `dynamic_view`."""
    shape = _resolved(size, src_tensor, src_dim, target_dim, int(mul_scaler))
    return input.new_empty(input.reshape(shape).shape)


def _resolved(size: Sequence[int], source: torch.Tensor, source_dim: int, target_dim: int, factor: int) -> list[int]:
    """The sizes, with the other tensor's size at its index."""
    shape = list(size)
    shape[target_dim] = source.shape[source_dim] * factor
    return shape


def _on_cpu(reshape: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(
        input: torch.Tensor, size: Sequence[int], source: torch.Tensor, source_dim: int, target_dim: int, factor: int = 1
    ) -> torch.Tensor:
        return reshape(input, _resolved(size, source, source_dim, target_dim, factor)).clone(memory_format=torch.contiguous_format)

    return run


def _define(schema: str, shapes: Callable[..., torch.Tensor], reshape: Callable[..., torch.Tensor], lower: Callable[..., jax.Array]) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, _on_cpu(reshape), "CompositeExplicitAutograd")
    torch.library.register_fake(f"xla::{name}", shapes, lib=_LIBRARY)
    register_op(OpSpec(f"xla::{name}", lower, notes="a size is that of another tensor"))
    torch.library.register_autograd(f"xla::{name}", _backward, setup_context=_keep_shape, lib=_LIBRARY)
    return getattr(torch.ops.xla, name).default


def _keep_shape(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.shape, ctx.count = inputs[0].shape, len(inputs)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    same = grad.numel() == ctx.shape.numel()
    return (grad.reshape(ctx.shape) if same else grad.sum_to_size(ctx.shape), *[None] * (ctx.count - 1))


def _lower_expand(context: Context, x: jax.Array, *_: Any) -> jax.Array:
    return lax.broadcast_in_dim(x, context.shape, tuple(range(len(context.shape) - x.ndim, len(context.shape))))


def _lower_view(context: Context, x: jax.Array, *_: Any) -> jax.Array:
    return lax.reshape(x, context.shape)


EXPAND = _define(
    "dynamic_expand(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim) -> Tensor",
    dynamic_expand_meta,
    torch.Tensor.expand,
    _lower_expand,
)
VIEW = _define(
    "dynamic_view(Tensor input, SymInt[] size, Tensor src_tensor, int src_dim, int target_dim, int mul_scaler) -> Tensor",
    dynamic_view_meta,
    torch.Tensor.reshape,
    _lower_view,
)
