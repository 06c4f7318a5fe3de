"""How large the blocks of JAX's attention kernels for TPUs are, by the model of the device, whose vector memory has to hold them.

The kernels themselves ask the process for its devices, which need not be those that the program is for.
"""

from __future__ import annotations

import re

import jax

from xla_core.base import config

_MIB = 1 << 20
# What the compiler lets one kernel have, unless it is told otherwise; by the beginning of `jax.Device.device_kind`.
_KERNEL_BYTES = {"TPU v6": 32 * _MIB, "TPU7x": 32 * _MIB}
_LARGE_MEMORY = ("TPU v5", "TPU v6", "TPU7x")  # models with more vector memory than they let a kernel have by default
_LIMIT = re.compile(r"--?xla_tpu_scoped_vmem_limit_kib=(\d+)")
_ROWS = 128  # of the smallest block


def kernel_bytes(kind: str) -> int:
    """The vector memory that one kernel may use: as LIBTPU_INIT_ARGS says, else the compiler's own limit for this model of TPU."""
    said = _LIMIT.search(config.LIBTPU_INIT_ARGS.get() or "")
    if said is not None:
        return int(said[1]) << 10
    return next((limit for name, limit in _KERNEL_BYTES.items() if kind.startswith(name)), 16 * _MIB)


def flash_blocks(length: int, key_length: int, head_dim: int, itemsize: int, biased: bool, kind: str) -> tuple[int, int]:
    """Queries and keys of a block of flash attention, for lengths that are multiples of 128.

    Up to 2,048 queries, so that keys are read less often, but at most a quarter of the length: a causal mask leaves out whole blocks only.
    By what the compiler reports, these fit beside 512 keys up to heads of 256 in bfloat16 and 128 in float32, without bias; half of them
    where a core has 16 MiB of vector memory in all, as on v4.
    """
    most = 512 if biased or head_dim * itemsize > 512 else 2048 if kind.startswith(_LARGE_MEMORY) else 1024
    rows = next((size for size in (2048, 1024, 512) if size <= most and length % (4 * size) == 0), None)
    whole = next(size for size in (512, 256, _ROWS) if length % size == 0)
    return rows or whole, next(size for size in (512, 256, _ROWS) if key_length % size == 0)


def splash_rows(wanted: int, length: int, head_dim: int, itemsize: int, kind: str) -> int:
    """Rows of a block of splash attention: as wanted, or the next smaller number that divides the length and fits.

    The backward kernel needs most: one and a half float32 for each score of a block, and fourteen of its blocks of operands, by what the
    compiler reports for rows of 512 to 2,048, heads of 64 to 256, bfloat16 and float32; a quarter more on v4.
    """
    limit = kernel_bytes(kind) * 4 // 5 if kind.startswith("TPU v4") else kernel_bytes(kind)
    fits = [rows for rows in range(_ROWS, min(wanted, length) + 1, _ROWS) if 6 * rows * rows + 14 * rows * head_dim * itemsize <= limit]
    return next((rows for rows in reversed(fits) if length % rows == 0), _ROWS)


def ragged_blocks(q: jax.Array, kv_pages: jax.Array, page_indices: jax.Array, kind: str) -> tuple[int, int]:
    """Pages and queries of a block of ragged paged attention: those that JAX found by measuring, else as many as fit."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel, tuned_block_sizes  # slow to import

    tokens, heads, head_dim = q.shape
    _, page_size, kv_heads, _ = kv_pages.shape
    count = page_indices.shape[1]
    of_block = kernel.get_min_heads_per_blk(heads, kv_heads, q.dtype, kv_pages.dtype)
    shape = (q.dtype, kv_pages.dtype, of_block[0], of_block[1] // 2, head_dim, page_size, tokens, count)
    tuned = tuned_block_sizes.TUNED_BLOCK_SIZES.get(" ".join(kind.split()[:2]), {})
    pages, queries = tuned.get(tuned_block_sizes.simplify_key(shape), (_ROWS, 32))
    # Two buffers of keys and values, which are read while the other is used: a quarter of the memory.
    fitting = kernel_bytes(kind) // 4 // (2 * page_size * of_block[1] * head_dim * kv_pages.dtype.itemsize)
    return max(1, min(pages, count, fitting)), min(queries, tokens)
