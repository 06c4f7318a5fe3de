"""Products with weights of 8 or 4 bits: one scale for each output channel, or for each block of inputs; a linear layer of it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_core.base.errors import UnsupportedOperationError
from xla_core.features.kernels.checks import check_floating, check_shape
from xla_core.features.kernels.operators import define
from xla_core.features.kernels.scores import wide

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


def _exact(quantize_activation: bool, **arguments: Any) -> jax.Array:
    return _quantized(quantize_activation=False, **arguments)


_matmul_op = define(
    "quantized_matmul(Tensor x, Tensor w, Tensor scale, Tensor? zero_point=None, int? block_size=-1, bool? int4_weight=False, "
    "bool? quantize_activation=False) -> Tensor",
    _quantized,
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


quantized_matmul_int8_xla = define(
    "quantized_matmul_int8(Tensor x, Tensor w, Tensor scalar, Tensor? zero_point=None, Tensor? quant_block_size=None, "
    "bool quantize_activation=False, int? batch_block_size=None, int? out_block_size=None, int? in_block_size=None) -> Tensor",
    quantized_int8,
    _channels,
    ("x",),
    smooth=lambda quantize_activation, **arguments: quantized_int8(**arguments),
)


def quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    quant_block_size: torch.Tensor | None = None,
    quantize_activation: bool = False,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> torch.Tensor:
    """x (rows, in) times (w - zero_point) * scalar, an int8 weight w (out, in) with one scale (and zero point) per output channel.

    quantize_activation: x is rounded to int8 too, with one scale per row; its gradient is that of the exact product. The block sizes tune
    a kernel. Raises UnsupportedOperationError for quant_block_size, TypeError if w is not int8.
    """
    found: torch.Tensor = quantized_matmul_int8_xla(
        x, w, scalar, zero_point, quant_block_size, quantize_activation, batch_block_size, out_block_size, in_block_size
    )
    return found


def quantized_matmul(
    x: torch.Tensor,
    w: torch.Tensor,
    scaler: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    block_size: int = -1,
    int4_weight: bool = False,
    quantize_activation: bool = False,
) -> torch.Tensor:
    """x (…, in) times a weight of integers, which stands for w * scaler - zero_point.

    w: int8, (out, in) with scaler and zero_point (out,); with a block_size (in / block_size, block_size, out), scaler and zero_point
    (in / block_size, out). int4_weight: of each weight the lower four bits count. quantize_activation: x is rounded to int8, with one
    scale per row; its gradient is that of the exact product. Raises ValueError for shapes that do not fit, TypeError if w is not int8.
    """
    found: torch.Tensor = _matmul_op(x, w, scaler, zero_point, block_size, int4_weight, quantize_activation)
    return found


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


class XlaQuantizedLinear(torch.nn.Module):
    """A linear layer without bias over a quantized weight, as `quantized_matmul`; load the weight before use.

    is_symmetric: no zero points. block_size: -1 for one scale per output channel.
    """

    weight: torch.Tensor
    weight_scaler: torch.Tensor
    zero_point: torch.Tensor | None

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        is_symmetric: bool = False,
        block_size: int = -1,
        int4_weight: bool = False,
        quantize_activation: bool = False,
    ) -> None:
        super().__init__()
        self.input_dim, self.output_dim, self.block_size = input_dim, output_dim, block_size
        self.is_symmetric, self.int4_weight, self.quantize_activation = is_symmetric, int4_weight, quantize_activation
        blocks = () if block_size == -1 else (input_dim // block_size,)
        shape = (output_dim, input_dim) if block_size == -1 else (*blocks, block_size, output_dim)
        self.register_buffer("weight", torch.zeros(shape, dtype=torch.int8))
        self.register_buffer("weight_scaler", torch.ones(*blocks, output_dim))
        self.register_buffer("zero_point", None if is_symmetric else torch.zeros(*blocks, output_dim))

    def load_quantized_weight(self, weight: torch.Tensor, weight_scaler: torch.Tensor, zero_point: torch.Tensor | None = None) -> None:
        """Take over a weight. Raises as `quantized_matmul`, and ValueError for a zero point where there is none, or none where there is."""
        if (zero_point is None) != self.is_symmetric:
            raise ValueError(f"a layer with is_symmetric={self.is_symmetric} takes {'no' if self.is_symmetric else 'a'} zero_point")
        check_weight(self.input_dim, self.output_dim, self.block_size, weight, weight_scaler, zero_point)
        device = self.weight.device
        self.weight, self.weight_scaler = weight.to(device), weight_scaler.to(device)
        self.zero_point = None if zero_point is None else zero_point.to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x (…, input_dim) → (…, output_dim)."""
        return quantized_matmul(
            x, self.weight, self.weight_scaler, self.zero_point, self.block_size, self.int4_weight, self.quantize_activation
        )


quantized_matmul_xla = quantized_matmul
quantized_matmul_int8_non_xla = quantized_matmul_int8_xla  # which takes CPU tensors too
