"""Attention of sequences of different lengths over pages: JAX's own kernel for TPU, its checks and its block sizes."""

from jax.experimental.pallas import cdiv
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import (
    DEFAULT_MASK_VALUE,
    MultiPageAsyncCopyDescriptor,
    dynamic_validate_inputs,  # noqa: F401  JAX's own, which describes it nowhere
    get_dtype_packing,  # noqa: F401  JAX's own, which describes it nowhere
    get_min_heads_per_blk,  # noqa: F401  JAX's own, which describes it nowhere
    ragged_paged_attention,
    ragged_paged_attention_kernel,  # noqa: F401  JAX's own, which describes it nowhere
    ref_ragged_paged_attention,  # noqa: F401  JAX's own, which describes it nowhere
    static_validate_inputs,  # noqa: F401  JAX's own, which describes it nowhere
)
from jax.experimental.pallas.ops.tpu.ragged_paged_attention.tuned_block_sizes import (
    MAX_PAGES_PER_SEQ,
    TUNED_BLOCK_SIZES,
    get_device_name,  # noqa: F401  JAX's own, which describes it nowhere
    get_min_page_size,
    get_tpu_version,
    get_tuned_block_sizes,
    next_power_of_2,
    simplify_key,
)

__all__ = [
    "DEFAULT_MASK_VALUE",
    "MAX_PAGES_PER_SEQ",
    "TUNED_BLOCK_SIZES",
    "MultiPageAsyncCopyDescriptor",
    "cdiv",
    "get_min_page_size",
    "get_tpu_version",
    "get_tuned_block_sizes",
    "next_power_of_2",
    "ragged_paged_attention",
    "simplify_key",
]
