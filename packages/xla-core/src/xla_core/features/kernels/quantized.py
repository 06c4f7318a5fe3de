"""Quantized values and products of chosen dtypes.

Programs compute with the integers and the arithmetic that gives them their meaning: XLA runs no types of quantized elements. What is
exported has them, `stablehlo.uniform_quantize` and `uniform_dequantize` (features/export/uniform.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from xla_core.base.dtypes import device_dtype
from xla_core.engine.tensor.dispatch import forget_handlers
from xla_core.engine.tensor.jax_call import call_jax
from xla_core.ops.nn.quantized.quantize_kernel import DEQUANTIZE, DEQUANTIZE_CHANNELS, QUANTIZE, QUANTIZE_CHANNELS


def xla_quantize_per_tensor(
    input: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """round(input / scale) + zero_point between quant_min and quant_max, as `dtype`."""
    result: torch.Tensor = QUANTIZE(input, [float(scale)], [int(zero_point)], quant_min, quant_max, dtype)
    return result


def xla_dequantize_per_tensor(
    input: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """(input - zero_point) * scale in float32. Raises TypeError if input is not of `dtype`."""
    result: torch.Tensor = DEQUANTIZE(input, [float(scale)], [int(zero_point)], quant_min, quant_max, dtype)
    return result


def xla_quantize_per_channel(
    input: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """As `xla_quantize_per_tensor`, with scale and zero_point (channels,) for each index of dimension `axis`."""
    result: torch.Tensor = _by_channel(QUANTIZE, QUANTIZE_CHANNELS, input, scale, zero_point, axis, quant_min, quant_max, dtype)
    return result


def xla_dequantize_per_channel(
    input: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """As `xla_dequantize_per_tensor`, with scale and zero_point (channels,) for each index of dimension `axis`."""
    result: torch.Tensor = _by_channel(DEQUANTIZE, DEQUANTIZE_CHANNELS, input, scale, zero_point, axis, quant_min, quant_max, dtype)
    return result


def _by_channel(
    listed: Any, by_tensors: Any, input: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, *rest: Any
) -> Any:
    """Numbers on the CPU are constants of the program; those on the device, or of a tracer, are not read."""
    if not -input.ndim <= axis < input.ndim:
        raise IndexError(f"axis {axis} is out of range for {input.ndim} dimensions")
    dim = axis % input.ndim
    on_host = all(type(each) is torch.Tensor and each.device.type == "cpu" and not each.requires_grad for each in (scale, zero_point))
    if on_host and not torch.compiler.is_compiling():
        return listed(input, scale.tolist(), [int(number) for number in zero_point.tolist()], *rest, dim)
    return by_tensors(input, scale.to(input.device), zero_point.to(input.device), dim, *rest)


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype of torch")
    return dtype


def _xla_quantize_tensor(
    input: torch.Tensor, scale_list: Sequence[float], zero_point_list: Sequence[int], quant_min: int, quant_max: int, dtype: str, axis: int
) -> torch.Tensor:
    """Integers of `dtype` (such as `int8`) for `input`: one scale and zero point, or with axis >= 0 one for each channel."""
    result: torch.Tensor = QUANTIZE(input, list(scale_list), list(zero_point_list), quant_min, quant_max, _dtype(dtype), axis)
    return result


def _xla_dequantize_tensor(
    input: torch.Tensor, scale_list: Sequence[float], zero_point_list: Sequence[int], quant_min: int, quant_max: int, dtype: str, axis: int
) -> torch.Tensor:
    """The float32 values that such integers stand for."""
    result: torch.Tensor = DEQUANTIZE(input, list(scale_list), list(zero_point_list), quant_min, quant_max, _dtype(dtype), axis)
    return result


def _dot_general(lhs: jax.Array, rhs: jax.Array, numbers: Any, precision: str | None, preferred: Any) -> jax.Array:
    common = jnp.promote_types(lhs.dtype, rhs.dtype)
    mixed = lhs.dtype != rhs.dtype and preferred is None
    left, right = (lhs.astype(common), rhs.astype(common)) if mixed else (lhs, rhs)
    with jax.enable_x64(preferred is not None and preferred.itemsize == 8):
        return lax.dot_general(left, right, numbers, precision=precision, preferred_element_type=preferred)


def _decomposed_to_floats(
    input: torch.Tensor, scale: Any, zero_point: Any, *rest: Any, out_dtype: torch.dtype | None = None, by: Any = xla_dequantize_per_tensor
) -> torch.Tensor:
    """torch's own dequantization; in another dtype it computes in that."""
    if out_dtype in (None, torch.float32):
        result: torch.Tensor = by(input, scale, zero_point, *rest)
        return result
    shape = [-1 if place == rest[0] % input.ndim else 1 for place in range(input.ndim)] if isinstance(scale, torch.Tensor) else None
    factor, offset = (scale, zero_point) if shape is None else (scale.reshape(shape), zero_point.reshape(shape))
    return torch.mul(input.to(out_dtype) - offset, factor).to(out_dtype)


def _decomposed_channels_to_floats(input: torch.Tensor, scales: torch.Tensor, zero_points: Any, *rest: Any, **options: Any) -> torch.Tensor:
    zeros = torch.zeros(scales.shape, dtype=torch.int32, device=scales.device) if zero_points is None else zero_points
    return _decomposed_to_floats(input, scales, zeros, *rest, by=xla_dequantize_per_channel, **options)


# Of torch's operations of these names, which it defines when somebody imports them. Held for good: torch takes kernels back otherwise.
_DECOMPOSED: Any = torch.library.Library("quantized_decomposed", "IMPL")
for _name, _kernel in {
    "quantize_per_tensor": xla_quantize_per_tensor,
    "dequantize_per_tensor": _decomposed_to_floats,
    "quantize_per_channel": xla_quantize_per_channel,
    "dequantize_per_channel": _decomposed_channels_to_floats,
}.items():
    _DECOMPOSED.impl(_name, _kernel, "PrivateUse1")
forget_handlers("quantized_decomposed")


def _place(index: int, rank: int) -> int:
    if not -rank <= index < rank:
        raise IndexError(f"dimension {index} is out of range for {rank} dimensions")
    return index % rank


def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: tuple[Any, Any],
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """The product over contracting dimensions, as `jax.lax.dot_general`: batch dimensions first, then the rest of lhs and of rhs.

    dimension_numbers: ((contracting of lhs, of rhs), (batch of lhs, of rhs)), tuples of indices, from the end where negative; an empty
    tuple for no batch dimensions. precision_config: `default`, `high` or `highest`. preferred_element_type: the dtype of the result, in
    which products are summed. Differentiable.
    """
    contracting, batch = (tuple(pair) or ((), ()) for pair in dimension_numbers)
    numbers = tuple(
        tuple(tuple(_place(index, side.ndim) for index in indices) for indices, side in zip(pair, (lhs, rhs), strict=True))
        for pair in (contracting, batch)
    )
    preferred = None if preferred_element_type is None else np.dtype(device_dtype(preferred_element_type))
    result: torch.Tensor = call_jax(
        _dot_general, (lhs, rhs, numbers, None if precision_config is None else precision_config.lower(), preferred), name="dot_general"
    )
    return result


def _four_bits(x: jax.Array) -> jax.Array:
    return x.astype(jnp.int4).astype(np.int8)


def _xla_cast_int4(weight: torch.Tensor, int_weight: Sequence[int]) -> torch.Tensor:
    """The values `int_weight`, or those of `weight` if the list is empty, as numbers of four bits, in an int8 tensor of its shape.

    torch has no dtype of four bits; the program does have, so that XLA may keep them so.
    """
    given = torch.tensor(list(int_weight), dtype=torch.int8, device=weight.device).reshape(weight.shape) if len(int_weight) else weight
    result: torch.Tensor = call_jax(_four_bits, (given,), name="cast_int4")
    return result
