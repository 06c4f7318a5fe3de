"""Products with quantized weights."""

from xla_core.features.kernels.quantized_matmul import XlaQuantizedLinear, quantized_matmul, quantized_matmul_xla

__all__ = ["XlaQuantizedLinear", "quantized_matmul", "quantized_matmul_xla"]
