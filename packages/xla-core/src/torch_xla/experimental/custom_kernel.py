"""Attention and grouped products by the names of their TPU kernels."""

from __future__ import annotations

from xla_core.compat.custom_kernel import (
    DEFAULT_MASK_VALUE,
    flash_attention,
    gmm,
    make_kernel_from_pallas,
    multi_queries_paged_attention,
    paged_attention,
    quantized_matmul_int8,
    ragged_paged_attention,
    tgmm,
    trace_pallas,
)

__all__ = [
    "DEFAULT_MASK_VALUE",
    "flash_attention",
    "gmm",
    "make_kernel_from_pallas",
    "multi_queries_paged_attention",
    "paged_attention",
    "quantized_matmul_int8",
    "ragged_paged_attention",
    "tgmm",
    "trace_pallas",
]
