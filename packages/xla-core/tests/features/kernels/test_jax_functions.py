"""Kernels over jax arrays, beside the operations of torch and JAX's own reference."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.paged_attention import quantization_utils

from torch_xla.experimental.pallas_kernels import multi_queries_paged_attention_kernel as several
from torch_xla.experimental.pallas_kernels import quantized_matmul_kernel as products
from torch_xla.experimental.pallas_kernels import ragged_paged_attention_kernel as ragged
from torch_xla.experimental.pallas_kernels import ragged_paged_attention_v2 as native
from xla_core.base.errors import UnsupportedOperationError

KEYS, VALUES = (jax.random.normal(jax.random.key(seed), (7, 4, 2, 8)) for seed in range(2))
Q = jax.random.normal(jax.random.key(2), (9, 4, 8))
LENGTHS, INDICES = jnp.array([6, 7], np.int32), jnp.array([[5, 0], [2, 6]], np.int32)
STARTS, COUNT = jnp.array([0, 2, 7], np.int32), jnp.array([2], np.int32)


def test_sequences_of_different_lengths() -> None:
    call: Any = Q, KEYS, VALUES, LENGTHS, INDICES, STARTS, COUNT
    ragged.check_kernel_input(*call, 2)
    found = ragged.ragged_paged_attention(*call, sm_scale=0.5)
    both = jnp.stack([KEYS, VALUES], 3).reshape(7, 4, 4, 8)
    expected = native.ref_ragged_paged_attention(Q, both, LENGTHS, INDICES, STARTS, COUNT, sm_scale=0.5)
    np.testing.assert_allclose(found[:7], expected, rtol=1e-4, atol=1e-5)
    assert not found[7:].any()
    with pytest.raises(ValueError, match="cu_q_lens has shape"):
        ragged.check_kernel_input(Q, KEYS, VALUES, LENGTHS, INDICES, STARTS[:2], COUNT, 2)
    with pytest.raises(ValueError, match="3 pages a block"):
        ragged.check_kernel_input(*call, 3)


def test_several_queries_over_quantized_pages() -> None:
    keys, values = (jnp.moveaxis(part, 2, 0) for part in (KEYS, VALUES))
    rest: Any = LENGTHS, INDICES, jnp.array([2, 3], np.int32)
    q = jax.random.normal(jax.random.key(3), (2, 3, 4, 8))
    exact = several.paged_attention(q, keys, values, *rest, num_kv_pages_per_compute_block=1)
    quantized = (quantization_utils.quantize_to_int8(part) for part in (keys, values))
    tensors = (quantization_utils.QuantizedTensor(*part) for part in quantized)
    found = several.paged_attention(q, *tensors, *rest, num_kv_pages_per_compute_block=1)
    np.testing.assert_allclose(found, exact, rtol=0.1, atol=0.1)


def test_products_and_their_blocks() -> None:
    x, w, scale = Q[0], jnp.arange(24, dtype=np.int8).reshape(3, 8), jnp.array([0.5, 1.0, 2.0])
    found = products.quantized_matmul_int8(x, w, scale, jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found, x @ ((w - np.array([[1.0], [2.0], [3.0]])) * scale[:, None]).T, rtol=1e-4, atol=1e-4)
    with pytest.raises(UnsupportedOperationError, match="quant_block_size"):
        products.quantized_matmul_int8(x, w, scale, quant_block_size=scale)
    sizes = 16, 256, 256, "bfloat16", True
    assert products.get_tuned_block_sizes(products.TUNED_BLOCK_SIZES, *sizes) == (128, 128, 128)
    table = {(products.get_tpu_version(), *sizes): (16, 256, 256)}
    assert products.get_tuned_block_sizes(table, *sizes) == (16, 256, 256)
    chosen = products.unfold_args((jnp.array(True), False), (), lambda first, second: jnp.int32(2 * first + second))
    assert int(chosen) == 2


def test_names_of_the_ragged_kernel_are_those_of_jax() -> None:
    assert native.cdiv(7, 4) == 2 and native.next_power_of_2(5) == 8 and native.get_dtype_packing(jnp.bfloat16) == 2
    assert native.DEFAULT_MASK_VALUE == several.DEFAULT_MASK_VALUE == ragged.DEFAULT_MASK_VALUE
