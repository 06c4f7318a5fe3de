"""The operators of products with weights of 8 or 4 bits: their lowerings, shapes and the checks of weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.ops.nn.attention.scores import wide
from xla_core.ops.nn.kernel_checks import check_floating, check_shape
from xla_core.ops.table import Context
from xla_core.ops.xla_namespace import define

Maybe = Any


def rounded(x: jax.Array, bits: int = 8) -> tuple[jax.Array, jax.Array]:
    """`x` as integers of some bits (in int8) with one scale for each row, and the scales."""
    limit = 2 ** (bits - 1) - 1
    step = jnp.max(jnp.abs(wide(x)), axis=-1, keepdims=True) / limit
    step = jnp.where(step == 0, 1.0, step)
    return jnp.clip(jnp.round(wide(x) / step), -limit - 1, limit).astype(np.int8), step


def _product(x: jax.Array, w: jax.Array, contracting: tuple[int, int]) -> jax.Array:
    """x·w over these dimensions: integers add up in int32, the rest in float32."""
    kind = np.int32 if x.dtype == np.int8 else np.float32
    w = w if x.dtype == np.int8 else w.astype(x.dtype)
    found = jax.lax.dot_general(x, w, (((contracting[0],), (contracting[1],)), ((), ())), preferred_element_type=kind)
    return found.astype(np.float32)


def _blockwise(x: jax.Array, w: jax.Array, scaler: jax.Array, block_size: int) -> jax.Array:
    """x (…, in) times w (blocks, block_size, out) with scaler (blocks, out): in each block by itself, then summed."""
    parts = x.reshape(*x.shape[:-1], -1, block_size)
    if x.dtype != np.int8:
        return jnp.einsum("...sc,scz,sz->...z", wide(parts), w.astype(np.float32), scaler.astype(np.float32))
    found = jnp.einsum("...sc,scz->...sz", parts, w, preferred_element_type=np.int32).astype(np.float32)
    return jnp.einsum("...sz,sz->...z", found, scaler.astype(np.float32))


def _quantized(
    x: jax.Array, w: jax.Array, scale: jax.Array, zero_point: Maybe, block_size: int, int4_weight: bool, quantize_activation: bool
) -> jax.Array:
    if int4_weight:
        w = w.astype(jnp.int4).astype(np.int8)
    chosen, step = rounded(x) if quantize_activation else (wide(x), None)
    if block_size in (None, -1):
        found = _product(chosen, w, (x.ndim - 1, 1)) * scale.astype(np.float32)
    else:
        found = _blockwise(chosen, w, scale, block_size)
    if step is not None:
        found = found * step
    if zero_point is not None and block_size in (None, -1):
        found = found - wide(x).sum(-1, keepdims=True) * zero_point.astype(np.float32)
    elif zero_point is not None:
        found = found - wide(x).reshape(*x.shape[:-1], -1, block_size).sum(-1) @ zero_point.astype(np.float32)
    return found.astype(x.dtype)


def _outputs(
    x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, block_size: int | None, **rest: Any
) -> torch.Tensor:
    blocks = -1 if block_size is None else block_size
    if w.ndim != (2 if blocks == -1 else 3):
        raise ValueError(f"with block_size={blocks} the weight has {2 if blocks == -1 else 3} dimensions, got {tuple(w.shape)}")
    inputs, outputs = (w.shape[1], w.shape[0]) if blocks == -1 else (w.shape[0] * w.shape[1], w.shape[2])
    check_weight(inputs, outputs, blocks, w, scale, zero_point)
    check_floating("quantized_matmul", x=x, scaler=scale, zero_point=zero_point)
    if not x.ndim or x.shape[-1] != inputs:
        raise ValueError(f"x has {x.shape[-1] if x.ndim else 'no'} inputs, the weight {inputs}")
    return x.new_empty(*x.shape[:-1], outputs)


def _exact(context: Context, quantize_activation: bool, **arguments: Any) -> jax.Array:
    return _quantized(quantize_activation=False, **arguments)


MATMUL = define(
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None, int? block_size=-1, bool? int4_weight=False, "
    "bool? quantize_activation=False) -> Tensor",
    lambda context, **arguments: _quantized(**arguments),
    _outputs,
    ("x",),
    smooth=_exact,
)


def quantized_int8(
    x: jax.Array,
    w: jax.Array,
    scalar: jax.Array,
    zero_point: Maybe = None,
    quant_block_size: Maybe = None,
    quantize_activation: bool = False,
    **tuning: Any,
) -> jax.Array:
    """As `quantized_matmul_int8`, over jax arrays. JAX ships no kernel for it: plain jax.numpy everywhere, which XLA fuses."""
    shift = None if zero_point is None else zero_point * scalar
    return _quantized(x, w, scalar, shift, -1, False, quantize_activation)


def _channels(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    quant_block_size: torch.Tensor | None = None,
    **rest: Any,
) -> torch.Tensor:
    if quant_block_size is not None:
        raise UnsupportedOperationError(
            "quantized_matmul_int8 has one scale for each channel: for blocks, call quantized_matmul(block_size=) of "
            "torch_xla.experimental.xla_quantized_matmul"
        )
    if w.dtype != torch.int8:
        raise TypeError(f"the weight of quantized_matmul_int8 is int8, got {w.dtype}")
    check_floating("quantized_matmul_int8", x=x, scalar=scalar)
    if w.ndim != 2 or x.shape[-1] != w.shape[1] or tuple(scalar.shape) != (w.shape[0],):
        raise ValueError(f"x {tuple(x.shape)}, weight {tuple(w.shape)} and scales {tuple(scalar.shape)} do not fit together")
    check_shape("quantized_matmul_int8", "zero points", zero_point, (w.shape[0],))
    return x.new_empty(*x.shape[:-1], w.shape[0])


MATMUL_INT8 = define(
    "quantized_matmul_int8(Tensor x, Tensor w, Tensor scalar, Tensor? zero_point=None, Tensor? quant_block_size=None, "
    "bool quantize_activation=False, int? batch_block_size=None, int? out_block_size=None, int? in_block_size=None) -> Tensor",
    lambda context, **arguments: quantized_int8(**arguments),
    _channels,
    ("x",),
    smooth=lambda context, quantize_activation, **arguments: quantized_int8(**arguments),
)


def check_weight(
    inputs: int, outputs: int, block_size: int, w: torch.Tensor, scaler: torch.Tensor, zero_point: torch.Tensor | None
) -> None:
    """Raise TypeError for weights that are not int8, ValueError where shapes are not those of `quantized_matmul`."""
    if w.dtype != torch.int8:
        raise TypeError(f"a quantized weight is int8, got {w.dtype}")
    if block_size != -1 and (block_size < 1 or inputs % block_size):
        raise ValueError(f"block_size={block_size} does not divide {inputs} inputs")
    blocks = () if block_size == -1 else (inputs // block_size,)
    wanted = (outputs, inputs) if block_size == -1 else (*blocks, block_size, outputs)
    channels = (*blocks, outputs)
    for name, found, shape in (("weight", w, wanted), ("scaler", scaler, channels), ("zero point", zero_point, channels)):
        if found is not None and tuple(found.shape) != shape:
            raise ValueError(f"the {name} of {inputs} inputs and {outputs} outputs has shape {shape}, got {tuple(found.shape)}")
