"""The operators of quantization, by one scale and zero point or by those of channels: their shapes and lowerings."""

from __future__ import annotations

from typing import Any

import jax
import torch

from xla_core.base.dtypes import device_dtype
from xla_core.ops.nn.kernel_checks import check_floating
from xla_core.ops.nn.quantized.quantization import dequantized, quantized
from xla_core.ops.table import Context
from xla_core.ops.xla_namespace import contiguous_like, define


def _integers(
    input: torch.Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: torch.dtype, axis: int = -1
) -> torch.Tensor:
    check_floating("quantization", input=input)
    _check_channels(input, scale, zero_point, axis)
    return contiguous_like(input).to(dtype)


def _floats(
    input: torch.Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: torch.dtype, axis: int = -1
) -> torch.Tensor:
    if input.dtype != dtype:
        raise TypeError(f"expected quantized values of {dtype}, got {input.dtype}")
    _check_channels(input, scale, zero_point, axis)
    return contiguous_like(input).to(torch.float32)


def _check_channels(input: torch.Tensor, scale: Any, zero_point: Any, axis: int) -> None:
    """scale, zero_point: lists or tensors; one of each where axis is -1 and they are lists."""
    listed = not isinstance(scale, torch.Tensor)
    if not (-1 if listed else 0) <= axis < input.ndim:
        raise IndexError(f"axis {axis} is out of range for {input.ndim} dimensions")
    wanted = 1 if axis < 0 else input.shape[axis]
    for name, given in (("scale", scale), ("zero point", zero_point)):
        count = len(given) if listed else given.numel()
        if count != wanted:
            what = "one scale and zero point" if axis < 0 else f"dimension {axis}, which has {wanted} channels,"
            raise ValueError(f"{what} got {count} for the {name}")


def _quantized(
    _: Context, input: jax.Array, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: torch.dtype, axis: int
) -> jax.Array:
    return quantized(input, scale, zero_point, quant_min, quant_max, device_dtype(dtype), axis)


def _dequantized(_: Context, input: jax.Array, scale: Any, zero_point: Any, axis: int, **rest: Any) -> jax.Array:
    return dequantized(input, scale, zero_point, axis)


_OPTIONS = "int quant_min, int quant_max, ScalarType dtype"
QUANTIZE = define(
    f"quantize_tensor(Tensor input, float[] scale, int[] zero_point, {_OPTIONS}, int axis=-1) -> Tensor",
    _quantized,
    _integers,
)
DEQUANTIZE = define(
    f"dequantize_tensor(Tensor input, float[] scale, int[] zero_point, {_OPTIONS}, int axis=-1) -> Tensor",
    _dequantized,
    _floats,
)
QUANTIZE_CHANNELS = define(
    f"quantize_channels(Tensor input, Tensor scale, Tensor zero_point, int axis, {_OPTIONS}) -> Tensor",
    _quantized,
    _integers,
)
DEQUANTIZE_CHANNELS = define(
    f"dequantize_channels(Tensor input, Tensor scale, Tensor zero_point, int axis, {_OPTIONS}) -> Tensor",
    _dequantized,
    _floats,
    ("scale",),
)
