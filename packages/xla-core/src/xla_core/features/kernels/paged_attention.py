"""Attention over keys and values in pages: one query a sequence, several, and sequences of different lengths in one batch of tokens."""

from __future__ import annotations

import torch

from xla_core.ops.nn.attention import paged_kernel

paged_attention_xla = paged_kernel.ONE_QUERY
multi_queries_paged_attention_xla = paged_kernel.SEVERAL_QUERIES
ragged_paged_attention_xla = paged_kernel.RAGGED_TOKENS


def paged_attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    pages_per_compute_block: int,
    megacore_mode: str | None = None,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """One query per sequence, q (batch, heads, head_dim), scaled, over the first `lengths` keys of its pages.

    k_pages, v_pages: (kv_heads, total_pages, page_size, head_dim); page_indices: (batch, pages). The rest tunes a kernel.
    """
    result: torch.Tensor = paged_attention_xla(
        q, k_pages, v_pages, lengths, page_indices, pages_per_compute_block, megacore_mode, attn_logits_soft_cap
    )
    return result


def multi_queries_paged_attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """Several queries per sequence, q (batch, queries, heads, head_dim), scaled: the last ones of its `lengths` positions, causal.

    effective_q_lens: (batch,), how many of the queries count. Pages as in `paged_attention`. The rest tunes a kernel.
    """
    tuning = num_kv_pages_per_compute_block, num_queries_per_compute_block, use_kernel
    result: torch.Tensor = multi_queries_paged_attention_xla(
        q, k_pages, v_pages, lengths, page_indices, effective_q_lens, *tuning, attn_logits_soft_cap
    )
    return result


def ragged_paged_attention(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    *,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
) -> torch.Tensor:
    """Sequences of different lengths in one batch of tokens, causal; tokens of no sequence give zeros.

    q: (tokens, heads, head_dim); kv_pages: (total_pages, page_size, 2·kv_heads, head_dim), keys and values alternating;
    kv_lens, page_indices, cu_q_lens: per sequence; num_seqs: (1,), how many sequences there are. use_kernel=False: never the kernel of
    the platform. The last three tune it.
    """
    options = sm_scale, sliding_window, soft_cap, mask_value, k_scale, v_scale
    tuning = use_kernel, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes
    result: torch.Tensor = ragged_paged_attention_xla(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, *options, *tuning)
    return result


def non_xla_ragged_paged_attention(q: torch.Tensor, kv: torch.Tensor, attention_type: str) -> torch.Tensor:
    """An empty tensor of the shape of q: what tracers see of an attention of this type."""
    return torch.empty_like(q)


# The operations take CPU tensors too.
paged_attention_non_xla = paged_attention_xla
multi_queries_paged_attention_non_xla = multi_queries_paged_attention_xla
ragged_paged_attention_non_xla = ragged_paged_attention_xla
