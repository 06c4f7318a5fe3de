"""GRU layers whose time steps are one compiled loop, however long the sequence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from xla_core.engine.tensor.jax_call import call_jax
from xla_core.engine.tensor.plain import tensor_behind


def _layer(
    x: jax.Array, first: jax.Array, to_gates: jax.Array, recurrent: jax.Array, bias: Any, recurrent_bias: Any, *, reverse: bool
) -> tuple[jax.Array, jax.Array]:
    """One layer in one direction over x (length, batch, inputs): all hidden states, and the last one."""
    inputs = x @ to_gates.T if bias is None else x @ to_gates.T + bias

    def step(hidden: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
        gates = hidden @ recurrent.T if recurrent_bias is None else hidden @ recurrent.T + recurrent_bias
        (reset, update, new), (own_reset, own_update, own_new) = jnp.split(row, 3, -1), jnp.split(gates, 3, -1)
        candidate = jnp.tanh(new + jax.nn.sigmoid(reset + own_reset) * own_new)
        hidden = candidate + jax.nn.sigmoid(update + own_update) * (hidden - candidate)
        return hidden, hidden

    last, outputs = lax.scan(step, first, inputs, reverse=reverse)
    return outputs, last


class GRU(torch.nn.GRU):
    """`torch.nn.GRU`, with the same arguments, parameters and values, whose loop over time is compiled as one loop.

    Packed sequences, and tensors of other devices, go the way of `torch.nn.GRU`.
    """

    def forward(self, input: Any, hx: torch.Tensor | None = None) -> Any:
        """Outputs and last hidden states, as `torch.nn.GRU`. Raises as it does."""
        if not isinstance(input, torch.Tensor) or tensor_behind(input) is None:
            return super().forward(input, hx)
        if input.ndim not in (2, 3):
            raise ValueError(f"GRU: Expected input to be 2D or 3D, got {input.ndim}D instead")
        single = input.ndim == 2
        if single and hx is not None:
            if hx.ndim != 2:
                raise RuntimeError(f"For unbatched 2-D input, hx should also be 2-D but got {hx.ndim}-D tensor")
            hx = hx.unsqueeze(1)
        axis = 1 if single else 0 if self.batch_first else 1
        x = input.unsqueeze(1) if single else input
        if hx is None:
            directions = 2 if self.bidirectional else 1
            hx = torch.zeros(self.num_layers * directions, x.shape[axis], self.hidden_size, dtype=input.dtype, device=input.device)
        self.check_forward_args(x, hx, None)
        swap = self.batch_first and not single
        outputs, hidden = self._layers(x.transpose(0, 1) if swap else x, hx)
        if single:
            return outputs.squeeze(1), hidden.squeeze(1)
        return outputs.transpose(0, 1) if swap else outputs, hidden

    def _layers(self, x: torch.Tensor, hx: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """All layers over x (length, batch, inputs)."""
        suffixes = ("", "_reverse") if self.bidirectional else ("",)
        last: list[torch.Tensor] = []
        for layer in range(self.num_layers):
            directions = []
            for suffix in suffixes:
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                weights = [getattr(self, f"{name}_l{layer}{suffix}", None) for name in names]
                outputs, hidden = call_jax(_layer, _in_autocast(x, hx[len(last)], *weights), {"reverse": bool(suffix)}, name="gru")
                directions.append(outputs)
                last.append(hidden)
            x = torch.cat(directions, -1) if len(directions) > 1 else directions[0]
            if self.dropout and self.training and layer + 1 < self.num_layers:
                x = torch.nn.functional.dropout(x, self.dropout)
        return x, torch.stack(last)


def _in_autocast(*tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The tensors, in the dtype of autocast where it is on."""
    if not torch.is_autocast_enabled("xla"):
        return tensors
    dtype = torch.get_autocast_dtype("xla")
    return tuple(None if tensor is None else tensor.to(dtype) for tensor in tensors)
