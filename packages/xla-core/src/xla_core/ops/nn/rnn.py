"""The fused cells that torch uses for LSTM and GRU on devices other than the CPU, with gradients.

`torch.nn.LSTM` and `torch.nn.GRU` call them once per time step.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from jax import lax
from torch import Tensor

from xla_core.ops.facts import TorchKernel
from xla_core.ops.promote import cast, compute_dtype, expand
from xla_core.ops.table import Context, op, without_lowering

Maybe = jax.Array | None


def _gates(gates: jax.Array, bias: Maybe) -> jax.Array:
    """Pre-activations in the compute dtype, with their bias."""
    wide = cast(gates, compute_dtype(np.dtype(gates.dtype)))
    return wide if bias is None else lax.add(wide, expand(cast(bias, np.dtype(wide.dtype)), wide.shape))


def _parts(x: jax.Array, count: int) -> list[jax.Array]:
    """`x` in `count` equal parts along its last dimension."""
    return list(lax.split(x, [x.shape[-1] // count] * count, x.ndim - 1))


def _as(like: jax.Array | np.dtype, *values: jax.Array) -> list[jax.Array]:
    dtype = like if isinstance(like, np.dtype) else np.dtype(like.dtype)
    return [cast(value, dtype) for value in values]


def _lstm_results(gates: Tensor, hidden: Tensor, cx: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(cx), torch.empty_like(cx), torch.empty_like(gates)


def _gru_results(gates: Tensor, hidden: Tensor, hx: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


def _gru_gradients(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    gates = grad.new_empty(grad.shape[0], 3 * grad.shape[1])
    bias = gates[0] if has_bias else None
    return gates, gates, grad, bias, bias


without_lowering("_pack_padded_sequence", kernel=TorchKernel.OF_PARTS)  # by lengths that stay on the CPU


# Torch has these cells not on meta tensors, and not on the CPU.
@op("_thnn_fused_lstm_cell", shapes=_lstm_results)
def lstm_cell(
    ctx: Context, input_gates: jax.Array, hidden_gates: jax.Array, cx: jax.Array, input_bias: Maybe = None, hidden_bias: Maybe = None
) -> tuple[jax.Array, ...]:
    """_thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias?, hidden_bias?) -> (hy, cy, activated gates)"""
    ingate, forget, cell, outgate = _parts(lax.add(_gates(input_gates, input_bias), _gates(hidden_gates, hidden_bias)), 4)
    ingate, forget, outgate = (lax.logistic(gate) for gate in (ingate, forget, outgate))
    cell = lax.tanh(cell)
    cy = lax.add(lax.mul(forget, cast(cx, np.dtype(cell.dtype))), lax.mul(ingate, cell))
    hy = lax.mul(outgate, lax.tanh(cy))
    workspace = lax.concatenate([ingate, forget, cell, outgate], cell.ndim - 1)
    return tuple(_as(cx, hy, cy, workspace))


@op("_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    ctx: Context, grad_hy: Maybe, grad_cy: Maybe, cx: jax.Array, cy: jax.Array, workspace: jax.Array, has_bias: bool
) -> tuple[Maybe, Maybe, Maybe]:
    """_thnn_fused_lstm_cell_backward_impl(grad_hy?, grad_cy?, cx, cy, workspace, bool has_bias) -> (grad_gates, grad_cx, grad_bias)"""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    dtype = compute_dtype(np.dtype(workspace.dtype))
    ingate, forget, cell, outgate = _parts(cast(workspace, dtype), 4)
    squashed = lax.tanh(cast(cy, dtype))
    to_cell = lax.full_like(squashed, 0) if grad_cy is None else cast(grad_cy, dtype)
    to_outgate = lax.full_like(squashed, 0)
    if grad_hy is not None:
        wide = cast(grad_hy, dtype)
        to_outgate = wide * squashed * outgate * (1 - outgate)
        to_cell = to_cell + wide * outgate * (1 - squashed * squashed)
    gates = [
        to_cell * cell * ingate * (1 - ingate),
        to_cell * cast(cx, dtype) * forget * (1 - forget),
        to_cell * ingate * (1 - cell * cell),
        to_outgate,
    ]
    joined = lax.concatenate(gates, cell.ndim - 1)
    to_bias = lax.reduce_sum(joined, (0,)) if has_bias else None
    grad_gates, grad_cx = _as(workspace, joined, to_cell * forget)
    return grad_gates, grad_cx, None if to_bias is None else cast(to_bias, np.dtype(workspace.dtype))


@op("_thnn_fused_gru_cell", shapes=_gru_results)
def gru_cell(
    ctx: Context, input_gates: jax.Array, hidden_gates: jax.Array, hx: jax.Array, input_bias: Maybe = None, hidden_bias: Maybe = None
) -> tuple[jax.Array, jax.Array]:
    """_thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias?, hidden_bias?) -> (hy, workspace of five parts)"""
    of_input, of_hidden = _parts(_gates(input_gates, input_bias), 3), _parts(_gates(hidden_gates, hidden_bias), 3)
    reset, update = (lax.logistic(lax.add(a, b)) for a, b in zip(of_input[:2], of_hidden[:2], strict=True))
    new = lax.tanh(of_input[2] + reset * of_hidden[2])
    old = cast(hx, np.dtype(new.dtype))
    workspace = lax.concatenate([reset, update, new, old, of_hidden[2]], new.ndim - 1)
    hy, kept = _as(hx, new + update * (old - new), workspace)
    return hy, kept


@op("_thnn_fused_gru_cell_backward", shapes=_gru_gradients)
def gru_cell_backward(ctx: Context, grad_hy: jax.Array, workspace: jax.Array, has_bias: bool) -> tuple[Maybe, ...]:
    """_thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias) -> gradients of both gates, hx, both biases"""
    dtype = compute_dtype(np.dtype(workspace.dtype))
    reset, update, new, old, hidden = _parts(cast(workspace, dtype), 5)
    wide = cast(grad_hy, dtype)
    to_new = wide * (1 - update) * (1 - new * new)
    to_update = wide * (old - new) * update * (1 - update)
    to_reset = to_new * hidden * reset * (1 - reset)
    to_input = lax.concatenate([to_reset, to_update, to_new], wide.ndim - 1)
    to_hidden = lax.concatenate([to_reset, to_update, to_new * reset], wide.ndim - 1)
    biases = [lax.reduce_sum(gates, (0,)) if has_bias else None for gates in (to_input, to_hidden)]
    found = [to_input, to_hidden, wide * update, *biases]
    return tuple(None if value is None else cast(value, np.dtype(grad_hy.dtype)) for value in found)
