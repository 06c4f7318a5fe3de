"""Kernels as functions over jax arrays, under the names and with the arguments that programs call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xla_core.base.errors import UnsupportedOperationError
from xla_core.features.kernels.platform import context, platform
from xla_core.ops.nn.attention.paged_kernel import RAGGED, several_queries
from xla_core.ops.nn.attention.scores import DEFAULT_MASK_VALUE
from xla_core.ops.nn.quantized.matmul_kernel import quantized_int8

MIN_BLOCK_SIZE = 128
# Block sizes found by measuring; none: XLA chooses those of the products that it compiles.
TUNED_BLOCK_SIZES: dict[Any, tuple[int, int, int]] = {}


def paged_attention(
    q: jax.Array,
    k_pages: Any,
    v_pages: Any,
    lengths: jax.Array,
    page_indices: jax.Array,
    effective_q_lens: jax.Array,
    *,
    mask_value: float = DEFAULT_MASK_VALUE,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int = 4,
    attn_logits_soft_cap: float | None = None,
) -> jax.Array:
    """`custom_kernel.multi_queries_paged_attention` over jax arrays; pages may be JAX's QuantizedTensor.

    mask_value, and what tunes a kernel, have no effect on visible keys.
    """
    keys, values = (_plain(part) for part in (k_pages, v_pages))
    arrays = q, keys, values, lengths, page_indices, effective_q_lens
    return several_queries(context(over_mesh=False), *arrays, attn_logits_soft_cap=attn_logits_soft_cap)


def _plain(pages: Any) -> jax.Array:
    if isinstance(pages, jax.Array):
        return pages
    from jax.experimental.pallas.ops.tpu.paged_attention import quantization_utils  # slow to import

    result: jax.Array = quantization_utils.unquantize_from_int8(pages, np.dtype(np.float32))
    return result


def ragged_paged_attention(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: Any,
    *,
    mask_value: float = DEFAULT_MASK_VALUE,
    num_kv_pages_per_block: int = 128,
    num_queries_per_block: int = 128,
    sm_scale: float = 1.0,
) -> jax.Array:
    """`custom_kernel.ragged_paged_attention` over jax arrays; k_pages, v_pages: (total_pages, page_size, kv_heads, head_dim)."""
    both = jnp.stack([k_pages, v_pages], axis=3).reshape(*k_pages.shape[:2], -1, k_pages.shape[3])
    tables = kv_lens, page_indices, cu_q_lens, jnp.asarray(num_seqs, np.int32).reshape(1)
    rest = dict.fromkeys(("sliding_window", "soft_cap", "k_scale", "v_scale", "vmem_limit_bytes"))
    block = min(num_kv_pages_per_block, page_indices.shape[1])
    tuning = {"use_kernel": True, "num_kv_pages_per_block": block, "num_queries_per_block": num_queries_per_block}
    result: jax.Array = RAGGED(platform(), q, both, *tables, sm_scale=sm_scale, mask_value=mask_value, **rest, **tuning)
    return result


def check_kernel_input(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: Any,
    num_kv_pages_per_block: int,
) -> None:
    """Raise ValueError where shapes and dtypes are not those of `ragged_paged_attention`."""
    sequences, pages = page_indices.shape
    problems = {
        f"k_pages has shape {k_pages.shape}, v_pages {v_pages.shape}": k_pages.shape != v_pages.shape,
        f"queries have {q.shape[-1]} numbers a head, keys {k_pages.shape[-1]}": q.shape[-1] != k_pages.shape[-1],
        f"{q.shape[1]} query heads are no multiple of {k_pages.shape[2]} key heads": q.shape[1] % k_pages.shape[2] != 0,
        f"kv_lens has shape {kv_lens.shape}, not ({sequences},)": kv_lens.shape != (sequences,),
        f"cu_q_lens has shape {cu_q_lens.shape}, not ({sequences + 1},)": cu_q_lens.shape != (sequences + 1,),
        f"{num_kv_pages_per_block} pages a block do not divide {pages} pages a sequence": pages % num_kv_pages_per_block != 0,
        "kv_lens, page_indices and cu_q_lens are int32": any(one.dtype != np.int32 for one in (kv_lens, page_indices, cu_q_lens)),
    }
    for problem, there in problems.items():
        if there:
            raise ValueError(problem)


def quantized_matmul_int8(
    x: jax.Array,
    w: jax.Array,
    scalar: jax.Array,
    zero_point: jax.Array | None = None,
    quant_block_size: jax.Array | None = None,
    quantize_activation: bool = False,
    *,
    batch_block_size: int | None = None,
    out_block_size: int | None = None,
    in_block_size: int | None = None,
) -> jax.Array:
    """`custom_kernel.quantized_matmul_int8` over jax arrays. Raises UnsupportedOperationError for quant_block_size."""
    if quant_block_size is not None:
        raise UnsupportedOperationError("quantized_matmul_int8 has one scale for each channel: quant_block_size must be None")
    return quantized_int8(x, w, scalar, zero_point, None, quantize_activation)


def get_tpu_version() -> int:
    """The generation of the TPU, such as 5; -1 where there is none."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention.tuned_block_sizes import get_tpu_version as tpu_version  # slow to import

    return int(tpu_version())


def get_tuned_block_sizes(
    block_table: dict[Any, tuple[int, int, int]],
    batch_size: int,
    n_output_features: int,
    n_input_features: int,
    activation_dtype: str,
    quantize_activation: bool,
) -> tuple[int, int, int]:
    """The blocks of batch, outputs and inputs that a table has by (generation of the TPU, these five); else 128 of each."""
    key = (get_tpu_version(), batch_size, n_output_features, n_input_features, activation_dtype, quantize_activation)
    return block_table.get(key, (MIN_BLOCK_SIZE,) * 3)


def unfold_args(args: tuple[Any, ...], fn_args: tuple[bool, ...], fn: Callable[..., Any]) -> Any:
    """`fn(*fn_args, *flags)`, run on the device for the values of the scalar conditions `args`; each flag reaches `fn` as a plain bool."""
    if not args:
        return fn(*fn_args)
    condition, *rest = args
    if isinstance(condition, bool):
        return unfold_args(tuple(rest), (*fn_args, condition), fn)
    return jax.lax.cond(
        condition, lambda: unfold_args(tuple(rest), (*fn_args, True), fn), lambda: unfold_args(tuple(rest), (*fn_args, False), fn)
    )
