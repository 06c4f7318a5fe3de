"""The aten rows of convolution: channel order, transposed convolution, bias, gradients by output mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.ops.cpu import staged
from xla_core.ops.cpu.in_memory import channels_first, channels_last, in_memory
from xla_core.ops.facts import Autocast
from xla_core.ops.nn.conv import choice as conv_choice
from xla_core.ops.nn.conv.shape import Window, spatial_arguments
from xla_core.ops.promote import cast, compute_dtype
from xla_core.ops.table import Context, op, without_lowering

Gradients = tuple[jax.Array | None, jax.Array | None, jax.Array | None]


def _working_dtype(ctx: Context, dtype: np.dtype) -> np.dtype:
    """float32 for half precision on the CPU, whose XLA has no fast half convolution; other devices accumulate in it anyway."""
    return compute_dtype(dtype) if ctx.platform == "cpu" else dtype


def _operand(ctx: Context, x: jax.Array) -> jax.Array:
    """(N, C, *spatial) as (N, *spatial, C), in the working dtype."""
    return cast(in_memory(ctx, channels_last(x)), _working_dtype(ctx, x.dtype))


def _window(ctx: Context, rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> Window:
    strides, paddings, dilations = spatial_arguments(rank, stride, padding, dilation)
    return Window(strides, paddings, dilations, groups, ctx)


def _result_shape(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    *rest: Any,
) -> torch.Tensor:
    """Torch's own looks at no bias, stride, padding or dilation, and knows no memory formats."""
    transposed, _, groups = rest
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and bias.shape != (channels,):
        raise RuntimeError(f"convolution: a bias for {channels} channels has the shape ({channels},), got {tuple(bias.shape)}")
    if min(*stride, *dilation) < 1 or min(padding) < 0:
        raise RuntimeError(f"convolution: strides and dilations are positive, paddings not negative, got {stride}, {dilation}, {padding}")
    result: torch.Tensor = torch.ops.aten.convolution.default(x, weight, bias, stride, padding, dilation, *rest)
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if last is not None and any(each.is_contiguous(memory_format=last) and not each.is_contiguous() for each in (x, weight)):
        return torch.empty_like(result, memory_format=last)
    return result


without_lowering(
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    autocast=Autocast.LOWER,
)


@op("convolution", autocast=Autocast.LOWER, shapes=_result_shape, shown_as="aten::convolution_overrideable")
@op("_convolution", autocast=Autocast.LOWER)
@op("convolution_overrideable")
def convolution(
    ctx: Context,
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *tuning: bool,
) -> jax.Array:
    """convolution(input, weight, Tensor? bias, stride, padding, dilation, bool transposed, output_padding, SymInt groups) -> Tensor"""
    window = _window(ctx, x.ndim - 2, stride, padding, dilation, groups)
    last, weight = _operand(ctx, x), cast(weight, _working_dtype(ctx, weight.dtype))
    if 0 in (*x.shape, *weight.shape, *ctx.shape):
        result = lax.full(ctx.shape, 0, last.dtype)
    elif transposed:
        result = channels_first(conv_choice.data_gradient(last, weight, ctx.shape[2:], window))
    else:
        result = channels_first(conv_choice.forward(last, weight, window, ctx.shape[2:]))
    if bias is not None and result.size:  # without channels, torch gives a result without channels, which no bias fits
        result = lax.add(result, lax.broadcast_in_dim(cast(bias, result.dtype), ctx.shape, (1,)))
    return cast(result, ctx.dtype)


def _gradients(
    ctx: Context, grad: jax.Array, x: jax.Array, weight: jax.Array, window: Window, transposed: bool, output_mask: Sequence[bool]
) -> Gradients:
    """Gradients of input, weight and bias that the mask asks for."""
    dtype = _working_dtype(ctx, grad.dtype)
    last_x, last_grad, matrix = _operand(ctx, x), _operand(ctx, grad), cast(weight, dtype)
    size, kernel = x.shape[2:], weight.shape[2:]
    empty = 0 in (*x.shape, *grad.shape, *weight.shape)
    to_x = to_weight = to_bias = None
    if output_mask[0] and empty:
        to_x = lax.full(x.shape, 0, dtype)
    elif output_mask[0] and transposed:
        to_x = channels_first(conv_choice.forward(last_grad, matrix, window, size))
    elif output_mask[0]:
        to_x = channels_first(conv_choice.data_gradient(last_grad, matrix, size, window))
    if output_mask[1] and empty:
        to_weight = lax.full(weight.shape, 0, dtype)
    elif output_mask[1] and transposed:  # the roles of input and gradient are exchanged
        to_weight = conv_choice.weight_gradient(last_grad, last_x, kernel, window)
    elif output_mask[1]:
        to_weight = conv_choice.weight_gradient(last_x, last_grad, kernel, window)
    if output_mask[2] and not grad.size:
        to_bias = lax.full((weight.shape[1] * window.groups if transposed else weight.shape[0],), 0, dtype)
    elif output_mask[2]:
        to_bias = staged.total(ctx, cast(last_grad, compute_dtype(grad.dtype)), range(last_grad.ndim - 1))
    return to_x, to_weight, to_bias


@op("convolution_backward")
def convolution_backward(
    ctx: Context,
    grad: jax.Array,
    x: jax.Array,
    weight: jax.Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Gradients:
    """convolution_backward(grad_output, input, weight, bias_sizes, as convolution from stride to groups, bool[3] output_mask)"""
    found = _gradients(ctx, grad, x, weight, _window(ctx, x.ndim - 2, stride, padding, dilation, groups), transposed, output_mask)
    to_x, to_weight, to_bias = (None if g is None else cast(g, like.dtype) for g, like in zip(found, (x, weight, grad), strict=True))
    return to_x, to_weight, to_bias


@op("convolution_backward_overrideable")
def convolution_backward_overrideable(
    ctx: Context, grad: jax.Array, x: jax.Array, weight: jax.Array, *settings: Sequence[int]
) -> Gradients:
    """convolution_backward_overrideable: convolution_backward without bias_sizes"""
    return convolution_backward(ctx, grad, x, weight, None, *settings)  # type: ignore[arg-type]


@op("conv_tbc", autocast=Autocast.LOWER)
def conv_tbc(ctx: Context, x: jax.Array, weight: jax.Array, bias: jax.Array, pad: int = 0) -> jax.Array:
    """conv_tbc(Tensor self, Tensor weight, Tensor bias, int pad=0) -> Tensor: time, batch, channels; weight (kernel, I, O)"""
    dtype = _working_dtype(ctx, x.dtype)
    last, kernel = lax.transpose(cast(x, dtype), (1, 0, 2)), lax.transpose(cast(weight, dtype), (2, 1, 0))
    if 0 in (*x.shape, *weight.shape, *ctx.shape):
        result = lax.full(ctx.shape, 0, dtype)
    else:
        result = lax.transpose(conv_choice.forward(last, kernel, Window((1,), (pad,), (1,), program=ctx), (ctx.shape[0],)), (1, 0, 2))
    return cast(lax.add(result, lax.broadcast_in_dim(cast(bias, dtype), ctx.shape, (2,))), ctx.dtype)
