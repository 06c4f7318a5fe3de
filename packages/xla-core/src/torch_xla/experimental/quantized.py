"""Quantized values."""

from xla_core.features.kernels.quantized import xla_dequantize_per_channel as xla_dequantize_per_channel
from xla_core.features.kernels.quantized import xla_dequantize_per_tensor as xla_dequantize_per_tensor
from xla_core.features.kernels.quantized import xla_quantize_per_channel as xla_quantize_per_channel
from xla_core.features.kernels.quantized import xla_quantize_per_tensor as xla_quantize_per_tensor

__all__ = [name for name in dir() if not name.startswith("__")]
