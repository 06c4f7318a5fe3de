"""Products with quantized weights."""

from __future__ import annotations

from xla_core.features.kernels.quantized_matmul import XlaQuantizedLinear, quantized_matmul, quantized_matmul_xla

__all__ = [
    "XlaQuantizedLinear",
    "quantized_matmul",
    "quantized_matmul_xla",
]
