"""Products with int8 weights."""

from __future__ import annotations

from xla_core.features.kernels.jax_functions import (
    TUNED_BLOCK_SIZES,
    get_tpu_version,
    get_tuned_block_sizes,
    quantized_matmul_int8,
    unfold_args,
)

__all__ = [
    "TUNED_BLOCK_SIZES",
    "get_tpu_version",
    "get_tuned_block_sizes",
    "quantized_matmul_int8",
    "unfold_args",
]
