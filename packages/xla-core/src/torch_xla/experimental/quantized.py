"""Quantized values."""

from __future__ import annotations

from xla_core.features.kernels.quantized import (
    xla_dequantize_per_channel,
    xla_dequantize_per_tensor,
    xla_quantize_per_channel,
    xla_quantize_per_tensor,
)

__all__ = [
    "xla_dequantize_per_channel",
    "xla_dequantize_per_tensor",
    "xla_quantize_per_channel",
    "xla_quantize_per_tensor",
]
