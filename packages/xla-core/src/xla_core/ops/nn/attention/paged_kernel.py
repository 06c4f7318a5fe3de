"""The operators of attention over keys and values in pages: their references, JAX's kernels for them, their shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_core.ops.nn.attention.blocks import ragged_blocks
from xla_core.ops.nn.attention.scores import capped, masked, weighted, wide
from xla_core.ops.nn.kernel_checks import check_floating, check_integers, check_shape, check_soft_cap
from xla_core.ops.platforms import PlatformKernel
from xla_core.ops.table import Context
from xla_core.ops.xla_namespace import contiguous_like, define

Maybe = Any
_WHAT = "paged attention"


def _pages_of(pages: jax.Array, page_indices: jax.Array) -> jax.Array:
    """(kv_heads, total_pages, page, dim) and (batch, pages) → (batch, kv_heads, pages·page, dim)."""
    heads, _, page, dim = pages.shape
    batch, count = page_indices.shape
    return jnp.swapaxes(jnp.take(pages, page_indices, axis=1).reshape(heads, batch, count * page, dim), 0, 1)


def _over_pages(
    q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, page_indices: jax.Array, limit: jax.Array, soft_cap: float | None
) -> jax.Array:
    """Attention of q (batch, queries, heads, dim) over paged keys before position `limit` (batch, queries)."""
    groups = q.shape[2] // k_pages.shape[0]
    keys, values = (jnp.repeat(wide(_pages_of(pages, page_indices)), groups, axis=1) for pages in (k_pages, v_pages))
    scores = capped(jnp.swapaxes(wide(q), 1, 2) @ jnp.swapaxes(keys, -1, -2), soft_cap)
    visible = jnp.arange(keys.shape[2])[None, None, None, :] < limit[:, None, :, None]
    return jnp.swapaxes(weighted(masked(scores, visible), values), 1, 2).astype(q.dtype)


def _paged(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> jax.Array:
    return _over_pages(q[:, None], k_pages, v_pages, page_indices, lengths[:, None], attn_logits_soft_cap)[:, 0]


def _paged_on_tpu(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> jax.Array | None:
    """JAX's Pallas kernel, for head sizes that are multiples of 128."""
    if q.shape[-1] % 128 or page_indices.shape[1] % pages_per_compute_block:
        return None
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as native  # slow to import

    options = {"megacore_mode": megacore_mode, "attn_logits_soft_cap": attn_logits_soft_cap}
    found: jax.Array = native(q, k_pages, v_pages, lengths, page_indices, pages_per_compute_block=pages_per_compute_block, **options)
    return found.astype(q.dtype)


def _paged_on_gpu(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> jax.Array | None:
    """JAX's Triton kernel: 16-bit floats, sizes that are powers of two."""
    sizes = (q.shape[-1], k_pages.shape[2], page_indices.shape[1])
    if q.dtype.itemsize != 2 or k_pages.dtype != q.dtype or q.shape[-1] < 16 or any(size & (size - 1) for size in sizes):
        return None
    from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention as native  # slow to import

    splits = min(16, page_indices.shape[1])
    block = min(pages_per_compute_block, page_indices.shape[1] // splits)
    options = {"k_splits": splits, "pages_per_compute_block": block, "attn_logits_soft_cap": attn_logits_soft_cap}
    found: jax.Array = native(q, k_pages, v_pages, page_indices, lengths, **options)
    return found.astype(q.dtype)


PAGED = PlatformKernel(_paged, tpu=_paged_on_tpu, gpu=_paged_on_gpu)


def _several(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    effective_q_lens: jax.Array,
    attn_logits_soft_cap: float | None = None,
    **tuning: Any,
) -> jax.Array:
    limit = (lengths - effective_q_lens)[:, None] + jnp.arange(q.shape[1])[None, :] + 1
    return _over_pages(q, k_pages, v_pages, page_indices, limit, attn_logits_soft_cap)


def as_ragged(
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    effective_q_lens: jax.Array,
) -> tuple[jax.Array, ...]:
    """What ragged paged attention takes to compute that of several queries: tokens, pages, and the tables of its sequences.

    The pages that are used come together, keys and values of a page side by side. All queries count, as if sequences were as much longer
    as the queries that do not; for these there are pages of zeros behind each sequence.
    """
    batch, queries, heads, dim = q.shape
    kv_heads, _, page, _ = k_pages.shape
    used = jnp.stack([jnp.take(pages, page_indices, axis=1) for pages in (k_pages, v_pages)], axis=-2)
    used = jnp.moveaxis(used, 0, 3).reshape(batch, -1, page, 2 * kv_heads, dim)
    used = jnp.pad(used, ((0, 0), (0, -(-queries // page)), (0, 0), (0, 0), (0, 0)))
    table = jnp.arange(batch * used.shape[1], dtype=np.int32).reshape(batch, -1)
    starts = jnp.arange(batch + 1, dtype=np.int32) * np.int32(queries)
    whole = (lengths - effective_q_lens).astype(np.int32) + np.int32(queries)
    return q.reshape(-1, heads, dim), used.reshape(-1, *used.shape[2:]), whole, table, starts, jnp.full(1, batch, np.int32)


def _several_on_tpu(
    *arrays: jax.Array,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
    kind: str = "",
    num_kv_pages_per_compute_block: int | None = None,
    num_queries_per_compute_block: int | None = None,
) -> jax.Array | None:
    """JAX's Pallas kernel of ragged paged attention, over a copy of the pages that are used."""
    options: dict[str, Any] = {"sm_scale": 1.0, "soft_cap": attn_logits_soft_cap, "use_kernel": use_kernel, "kind": kind}
    found = _ragged_on_tpu(*as_ragged(*arrays), **options)
    return None if found is None else found.reshape(arrays[0].shape)


SEVERAL = PlatformKernel(_several, tpu=_several_on_tpu)


def _ragged(
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    *,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    mask_value: float | None,
    k_scale: float | None,
    v_scale: float | None,
    **tuning: Any,
) -> jax.Array:
    tokens, groups = jnp.arange(q.shape[0]), q.shape[1] // (kv_pages.shape[2] // 2)
    queries = jnp.swapaxes(wide(q), 0, 1)

    def one(sequence: Any, result: jax.Array) -> jax.Array:
        rows = wide(kv_pages[page_indices[sequence]].reshape(-1, *kv_pages.shape[2:]))
        keys, values = rows[:, 0::2] * (1.0 if k_scale is None else k_scale), rows[:, 1::2] * (1.0 if v_scale is None else v_scale)
        keys, values = (jnp.repeat(jnp.swapaxes(part, 0, 1), groups, axis=0) for part in (keys, values))
        start, end = cu_q_lens[sequence], cu_q_lens[sequence + 1]
        place = (kv_lens[sequence] - end + tokens)[:, None]
        positions = jnp.arange(keys.shape[1])[None, :]
        visible = positions <= place
        if sliding_window is not None:
            visible = visible & (positions > place - sliding_window)
        scores = capped(queries @ jnp.swapaxes(keys, -1, -2) * sm_scale, soft_cap)
        attended = jnp.swapaxes(weighted(masked(scores, visible, mask_value), values), 0, 1)
        inside = (tokens >= start) & (tokens < end) & (sequence < num_seqs.reshape(()))
        return jnp.where(inside[:, None, None], attended, result)

    found: jax.Array = jax.lax.fori_loop(0, page_indices.shape[0], one, jnp.zeros(q.shape, wide(q).dtype))
    return found.astype(q.dtype)


def _ragged_on_tpu(
    q: jax.Array,
    kv_pages: jax.Array,
    *rest: jax.Array,
    use_kernel: bool,
    kind: str = "",
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    **options: Any,
) -> jax.Array | None:
    """JAX's Pallas kernel, for head sizes that are multiples of 128 and pages that it can divide."""
    if not use_kernel or q.shape[-1] % 128 or kv_pages.shape[2] % (2 * 4 // kv_pages.dtype.itemsize):
        return None
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention as native  # slow to import

    *tables, num_seqs = rest
    tables = [table.astype(np.int32) for table in tables]
    pages, queries = ragged_blocks(q, kv_pages, tables[1], kind)
    blocks = {"num_kv_pages_per_block": num_kv_pages_per_block or pages, "num_queries_per_block": num_queries_per_block or queries}
    found: jax.Array = native(q, kv_pages, *tables, num_seqs.astype(np.int32).reshape(1), **blocks, **options)
    # The kernel leaves tokens of no sequence as they were in memory.
    used = jnp.arange(q.shape[0]) < tables[2][num_seqs.reshape(())]
    return jnp.where(used[:, None, None], found, jnp.zeros((), found.dtype))


RAGGED = PlatformKernel(_ragged, tpu=_ragged_on_tpu)


def _ragged_operation(
    context: Context,
    q: jax.Array,
    kv_pages: jax.Array,
    kv_lens: jax.Array,
    page_indices: jax.Array,
    cu_q_lens: jax.Array,
    num_seqs: jax.Array,
    **options: Any,
) -> Any:
    return RAGGED(context.platform, q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, kind=context.kind, **options)


def several_queries(
    context: Context,
    q: jax.Array,
    k_pages: jax.Array,
    v_pages: jax.Array,
    lengths: jax.Array,
    page_indices: jax.Array,
    effective_q_lens: jax.Array,
    **options: Any,
) -> jax.Array:
    """As `multi_queries_paged_attention`, over jax arrays."""
    arrays = q, k_pages, v_pages, lengths, page_indices, effective_q_lens
    found: jax.Array = SEVERAL(context.platform, *arrays, kind=context.kind, **options)
    return found


def _as_queries(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor | None = None,
    attn_logits_soft_cap: float | None = None,
    **rest: Any,
) -> torch.Tensor:
    """Of several queries a sequence where there are effective_q_lens, else of one."""
    check_floating(_WHAT, q=q)
    wanted = ("batch", "heads", "head_dim") if effective_q_lens is None else ("batch", "queries", "heads", "head_dim")
    if q.ndim != len(wanted):
        raise ValueError(f"queries are ({', '.join(wanted)}), got {tuple(q.shape)}")
    if k_pages.ndim != 4 or k_pages.shape != v_pages.shape:
        raise ValueError(f"pages are (kv_heads, total_pages, page_size, head_dim), got {tuple(k_pages.shape)} and {tuple(v_pages.shape)}")
    _check_heads(q, k_pages.shape[0], k_pages.shape[3])
    if page_indices.ndim != 2 or page_indices.shape[0] != q.shape[0]:
        raise ValueError(f"page_indices of {q.shape[0]} sequences are ({q.shape[0]}, pages), got {tuple(page_indices.shape)}")
    check_integers(_WHAT, lengths=lengths, page_indices=page_indices, effective_q_lens=effective_q_lens)
    check_shape(_WHAT, "lengths", lengths, (q.shape[0],))
    check_shape(_WHAT, "effective_q_lens", effective_q_lens, (q.shape[0],))
    check_soft_cap(_WHAT, attn_logits_soft_cap)
    return contiguous_like(q)


def _as_tokens(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    **rest: Any,
) -> torch.Tensor:
    check_floating(_WHAT, q=q)
    check_integers(_WHAT, kv_lens=kv_lens, page_indices=page_indices, cu_q_lens=cu_q_lens, num_seqs=num_seqs)
    if q.ndim != 3 or kv_pages.ndim != 4 or kv_pages.shape[2] % 2:
        raise ValueError(
            "ragged attention takes (tokens, heads, head_dim) and pages (total_pages, page_size, 2 * kv_heads, head_dim), "
            f"got {tuple(q.shape)} and {tuple(kv_pages.shape)}"
        )
    _check_heads(q, kv_pages.shape[2] // 2, kv_pages.shape[3])
    if page_indices.ndim != 2:
        raise ValueError(f"page_indices are (sequences, pages), got {tuple(page_indices.shape)}")
    check_shape(_WHAT, "kv_lens", kv_lens, (page_indices.shape[0],))
    check_shape(_WHAT, "cu_q_lens", cu_q_lens, (page_indices.shape[0] + 1,))
    if num_seqs.numel() != 1:
        raise ValueError(f"num_seqs is one number, got {tuple(num_seqs.shape)}")
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"a sliding_window is 1 or more, got {sliding_window}: give None for none")
    check_soft_cap(_WHAT, soft_cap)
    return contiguous_like(q)


def _check_heads(q: torch.Tensor, kv_heads: int, head_dim: int) -> None:
    if q.shape[-2] % kv_heads or q.shape[-1] != head_dim:
        raise ValueError(f"{q.shape[-2]} query heads of size {q.shape[-1]} do not fit {kv_heads} key heads of size {head_dim}")


ONE_QUERY = define(
    "paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices, int pages_per_compute_block, "
    "str? megacore_mode=None, float? attn_logits_soft_cap=None) -> Tensor",
    lambda context, **arguments: PAGED(context.platform, **arguments),
    _as_queries,
)
SEVERAL_QUERIES = define(
    "multi_queries_paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices, Tensor effective_q_lens, "
    "int num_kv_pages_per_compute_block, int num_queries_per_compute_block, bool use_kernel, float? attn_logits_soft_cap=None) -> Tensor",
    several_queries,
    _as_queries,
)
RAGGED_TOKENS = define(
    "ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices, Tensor cu_q_lens, Tensor num_seqs, "
    "float sm_scale=1, int? sliding_window=None, float? soft_cap=None, float? mask_value=None, float? k_scale=None, float? v_scale=None, "
    "bool use_kernel=True, int? num_kv_pages_per_block=None, int? num_queries_per_block=None, int? vmem_limit_bytes=None) -> Tensor",
    _ragged_operation,
    _as_tokens,
)
