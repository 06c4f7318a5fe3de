"""Quantized values and products of chosen dtypes, as plain arithmetic.

Neither torch nor jax has types of quantized elements, so programs hold the integers and the arithmetic that gives them their meaning: an
exported module has these instead of `uniform_quantize`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from xla_core.dtypes import device_dtype
from xla_core.frontend.jax_call import call_jax


def xla_quantize_per_tensor(
    input: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """round(input / scale) + zero_point between quant_min and quant_max, as `dtype`."""
    return torch.clamp(torch.round(input * (1.0 / scale)) + zero_point, quant_min, quant_max).to(dtype)


def xla_dequantize_per_tensor(
    input: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """(input - zero_point) * scale in float32. Raises TypeError if input is not of `dtype`."""
    _check_dtype(input, dtype)
    return (input.to(torch.float32) - zero_point) * scale


def xla_quantize_per_channel(
    input: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """As `xla_quantize_per_tensor`, with scale and zero_point (channels,) for each index of dimension `axis`."""
    scale, zero_point = _along(input, axis, scale, zero_point)
    return torch.clamp(torch.round(input * (1.0 / scale)) + zero_point, quant_min, quant_max).to(dtype)


def xla_dequantize_per_channel(
    input: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """As `xla_dequantize_per_tensor`, with scale and zero_point (channels,) for each index of dimension `axis`."""
    _check_dtype(input, dtype)
    scale, zero_point = _along(input, axis, scale, zero_point)
    return ((input.to(torch.float32) - zero_point) * scale).to(torch.float32)


def _check_dtype(input: torch.Tensor, dtype: torch.dtype) -> None:
    if input.dtype != dtype:
        raise TypeError(f"expected quantized values of {dtype}, got {input.dtype}")


def _along(input: torch.Tensor, axis: int, *columns: torch.Tensor) -> list[torch.Tensor]:
    if not -input.ndim <= axis < input.ndim:
        raise IndexError(f"axis {axis} is out of range for {input.ndim} dimensions")
    shape = [1] * input.ndim
    shape[axis] = -1
    for column in columns:
        if column.numel() != input.shape[axis]:
            raise ValueError(f"dimension {axis} has {input.shape[axis]} channels, scale or zero point {column.numel()}")
    return [column.to(input.device).reshape(shape) for column in columns]


def _columns(input: torch.Tensor, scale: Sequence[float], zero_point: Sequence[int]) -> list[torch.Tensor]:
    return [torch.tensor(list(values), dtype=torch.float32, device=input.device) for values in (scale, zero_point)]


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")
    return found


def _xla_quantize_tensor(
    input: torch.Tensor, scale_list: Sequence[float], zero_point_list: Sequence[int], quant_min: int, quant_max: int, dtype: str, axis: int
) -> torch.Tensor:
    """Integers of `dtype` (such as `int8`) for `input`: one scale and zero point, or with axis >= 0 one for each channel."""
    if axis < 0:
        return xla_quantize_per_tensor(input, scale_list[0], zero_point_list[0], quant_min, quant_max, _dtype(dtype))
    scale, zero_point = _columns(input, scale_list, zero_point_list)
    return xla_quantize_per_channel(input, scale, zero_point, axis, quant_min, quant_max, _dtype(dtype))


def _xla_dequantize_tensor(
    input: torch.Tensor, scale_list: Sequence[float], zero_point_list: Sequence[int], quant_min: int, quant_max: int, dtype: str, axis: int
) -> torch.Tensor:
    """The float32 values that such integers stand for."""
    if axis < 0:
        return xla_dequantize_per_tensor(input, scale_list[0], zero_point_list[0], quant_min, quant_max, _dtype(dtype))
    scale, zero_point = _columns(input, scale_list, zero_point_list)
    return xla_dequantize_per_channel(input, scale, zero_point, axis, quant_min, quant_max, _dtype(dtype))


def _dot_general(lhs: jax.Array, rhs: jax.Array, numbers: Any, precision: str | None, preferred: Any) -> jax.Array:
    common = jnp.promote_types(lhs.dtype, rhs.dtype)
    mixed = lhs.dtype != rhs.dtype and preferred is None
    left, right = (lhs.astype(common), rhs.astype(common)) if mixed else (lhs, rhs)
    return lax.dot_general(left, right, numbers, precision=precision, preferred_element_type=preferred)


def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: tuple[Any, Any],
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """The product over contracting dimensions, as `jax.lax.dot_general`: batch dimensions first, then the rest of lhs and of rhs.

    dimension_numbers: ((contracting of lhs, of rhs), (batch of lhs, of rhs)), tuples of indices. precision_config: `default`, `high` or
    `highest`. preferred_element_type: the dtype of the result, in which products are summed. Differentiable.
    """
    numbers = tuple(tuple(tuple(one) for one in pair) for pair in dimension_numbers)
    preferred = None if preferred_element_type is None else np.dtype(device_dtype(preferred_element_type))
    found: torch.Tensor = call_jax(
        _dot_general, (lhs, rhs, numbers, None if precision_config is None else precision_config.lower(), preferred), name="dot_general"
    )
    return found


def _four_bits(x: jax.Array) -> jax.Array:
    return x.astype(jnp.int4).astype(np.int8)


def _xla_cast_int4(weight: torch.Tensor, int_weight: Sequence[int]) -> torch.Tensor:
    """The values `int_weight`, or those of `weight` if the list is empty, as numbers of four bits, in an int8 tensor of its shape.

    torch has no dtype of four bits; the program does have, so that XLA may keep them so.
    """
    given = torch.tensor(list(int_weight), dtype=torch.int8, device=weight.device).reshape(weight.shape) if len(int_weight) else weight
    found: torch.Tensor = call_jax(_four_bits, (given,), name="cast_int4")
    return found
