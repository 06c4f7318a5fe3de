"""Attention and grouped products that have hand-written kernels on TPU upstream, as reference computations.

They read no values on the host, so that they trace like any other operation. Arguments that tune a kernel (block sizes, memory
limits, partitioning) are accepted and have no effect on the values.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from xla_core.errors import UnsupportedOperationError

DEFAULT_MASK_VALUE = -0.7 * torch.finfo(torch.float32).max


def _attend(
    scores: torch.Tensor, visible: torch.Tensor | None, values: torch.Tensor, soft_cap: float | None = None, mask_value: float | None = None
) -> torch.Tensor:
    """softmax(scores) @ values over the last dimension of scores, in f32; `visible` says which scores count."""
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if visible is not None:
        scores = scores.masked_fill(~visible, DEFAULT_MASK_VALUE if mask_value is None else mask_value)
    return torch.softmax(scores, dim=-1) @ values.to(scores.dtype)


def _causal(queries: int, keys: int, device: torch.device) -> torch.Tensor:
    """Key at most query, both counted from the start: (queries, keys)."""
    return torch.arange(keys, device=device)[None, :] <= torch.arange(queries, device=device)[:, None]


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """softmax((q·kᵀ + ab)·sm_scale)·v over (batch, heads, length, head_dim); differentiable.

    q_segment_ids, kv_segment_ids: (batch, length); a query sees the keys of its own segment. ab: added to the scores.
    """
    scores = q.float() @ k.float().transpose(-1, -2)
    if ab is not None:
        scores = scores + ab.to(scores.dtype)
    if sm_scale != 1.0:
        scores = scores * sm_scale
    visible = None
    if q_segment_ids is not None and kv_segment_ids is not None:
        visible = (q_segment_ids[:, None, :, None] == kv_segment_ids[:, None, None, :]).expand_as(scores)
    if causal:
        below = _causal(q.shape[-2], k.shape[-2], q.device)
        visible = below.expand_as(scores) if visible is None else visible & below
    return _attend(scores, visible, v).to(q.dtype)


def splash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: Any = None,
    decoder_segment_ids: torch.Tensor | None = None,
    causal: bool = True,
    attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:
    """softmax(cap(q·kᵀ))·v over (batch, heads, length, head_dim); queries come scaled, key heads may be fewer than query heads.

    config: how the kernel is tuned and partitioned; no effect on the values.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (part.repeat_interleave(groups, dim=1) if groups > 1 else part for part in (k, v))
    scores = q.float() @ k.float().transpose(-1, -2)
    visible = _causal(q.shape[-2], k.shape[-2], q.device).expand_as(scores) if causal else None
    if decoder_segment_ids is not None:
        same = (decoder_segment_ids[:, None, :, None] == decoder_segment_ids[:, None, None, :]).expand_as(scores)
        visible = same if visible is None else visible & same
    return _attend(scores, visible, v, attn_logits_soft_cap).to(q.dtype)


def _pages_of(pages: torch.Tensor, page_indices: torch.Tensor) -> torch.Tensor:
    """(kv_heads, total_pages, page, dim) and (batch, pages) → (batch, kv_heads, pages·page, dim)."""
    batch, count = page_indices.shape
    heads, _, page, dim = pages.shape
    chosen = pages.index_select(1, page_indices.reshape(-1).to(torch.int64))
    return chosen.reshape(heads, batch, count * page, dim).transpose(0, 1)


def _paged(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    page_indices: torch.Tensor,
    limit: torch.Tensor,
    soft_cap: float | None,
) -> torch.Tensor:
    """Attention of q (batch, queries, heads, dim) over paged keys before position `limit` (batch, queries)."""
    groups = q.shape[2] // k_pages.shape[0]
    keys, values = (_pages_of(pages, page_indices).repeat_interleave(groups, dim=1).float() for pages in (k_pages, v_pages))
    scores = q.float().transpose(1, 2) @ keys.transpose(-1, -2)
    visible = torch.arange(keys.shape[2], device=q.device)[None, None, None, :] < limit[:, None, :, None]
    return _attend(scores, visible.expand_as(scores), values, soft_cap).transpose(1, 2).to(q.dtype)


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

    k_pages, v_pages: (kv_heads, total_pages, page_size, head_dim); page_indices: (batch, pages).
    """
    return _paged(q[:, None], k_pages, v_pages, page_indices, lengths[:, None], attn_logits_soft_cap)[:, 0]


def multi_queries_paged_attention(
    q: torch.Tensor,
    k_pages: torch.Tensor,
    v_pages: torch.Tensor,
    lengths: torch.Tensor,
    page_indices: torch.Tensor,
    num_kv_pages_per_compute_block: int,
    num_queries_per_compute_block: int,
    use_kernel: bool = True,
    attn_logits_soft_cap: float | None = None,
    effective_q_lens: torch.Tensor | None = None,
) -> torch.Tensor:
    """Several queries per sequence, q (batch, queries, heads, head_dim), scaled: the last ones of its `lengths` positions, causal.

    effective_q_lens: how many of the queries count, if not all.
    """
    queries = q.shape[1]
    counted = torch.full_like(lengths, queries) if effective_q_lens is None else effective_q_lens
    limit = (lengths - counted)[:, None] + torch.arange(queries, device=q.device)[None, :] + 1
    return _paged(q, k_pages, v_pages, page_indices, limit, attn_logits_soft_cap)


def ragged_paged_attention(
    q: torch.Tensor,
    kv_pages: torch.Tensor,
    kv_lens: torch.Tensor,
    page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor,
    num_seqs: torch.Tensor,
    use_kernel: bool = True,
    num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None,
    vmem_limit_bytes: int | None = None,
    sm_scale: float = 1.0,
    sliding_window: int | None = None,
    soft_cap: float | None = None,
    mask_value: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
) -> torch.Tensor:
    """Sequences of different lengths in one batch of tokens, causal; tokens of no sequence give zeros.

    q: (tokens, heads, head_dim); kv_pages: (total_pages, page_size, 2·kv_heads, head_dim), keys and values alternating;
    kv_lens, page_indices, cu_q_lens: per sequence; num_seqs: (1,), how many sequences there are.
    """
    tokens = torch.arange(q.shape[0], device=q.device)
    result = torch.zeros_like(q)
    for sequence in range(page_indices.shape[0]):
        rows = kv_pages.index_select(0, page_indices[sequence].to(torch.int64)).flatten(0, 1).float()
        keys, values = rows[:, 0::2] * (1.0 if k_scale is None else k_scale), rows[:, 1::2] * (1.0 if v_scale is None else v_scale)
        start, end, length = cu_q_lens[sequence], cu_q_lens[sequence + 1], kv_lens[sequence]
        place = (length - end + tokens)[:, None]
        positions = torch.arange(keys.shape[0], device=q.device)[None, :]
        visible = positions <= place
        if sliding_window is not None:
            visible = visible & (positions > place - sliding_window)
        groups = q.shape[1] // keys.shape[1]
        keys, values = (part.transpose(0, 1).repeat_interleave(groups, dim=0) for part in (keys, values))
        scores = q.float().transpose(0, 1) @ keys.transpose(-1, -2) * sm_scale
        attended = _attend(scores, visible.expand_as(scores), values, soft_cap, mask_value).transpose(0, 1).to(q.dtype)
        inside = (tokens >= start) & (tokens < end) & (sequence < num_seqs.reshape(()))
        result = torch.where(inside[:, None, None], attended, result)
    return result


def _in_group(group_sizes: torch.Tensor, rows: int, first: int) -> list[torch.Tensor]:
    """For each group from `first` on, which of `rows` belong to it: (rows, 1) of bools."""
    ends = torch.cumsum(group_sizes, 0)
    places = torch.arange(rows, device=group_sizes.device)
    starts = ends - group_sizes
    return [((places >= starts[group]) & (places < ends[group]))[:, None] for group in range(first, group_sizes.shape[0])]


def gmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] | None = None,
    group_offset: int | None = None,
    transpose_rhs: bool = False,
) -> torch.Tensor:
    """Rows of lhs (m, k), group after group, times that group's rhs (groups, k, n): (m, n). Rows of no group give zeros."""
    first = int(group_offset or 0)
    result = None
    for group, inside in enumerate(_in_group(group_sizes, lhs.shape[0], first)[: rhs.shape[0]]):
        factor = rhs[group].transpose(0, 1) if transpose_rhs else rhs[group]
        part = torch.where(inside, lhs, torch.zeros_like(lhs)) @ factor
        result = part if result is None else result + part
    if result is None:
        return lhs.new_zeros(lhs.shape[0], rhs.shape[1 if transpose_rhs else 2])
    return result


def tgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: tuple[int, int, int] | None = None,
    group_offset: int | None = None,
    num_actual_groups: int | None = None,
) -> torch.Tensor:
    """For each group its columns of lhs (k, m) times its rows of rhs (m, n): (groups, k, n)."""
    inside = _in_group(group_sizes, rhs.shape[0], int(group_offset or 0))[:num_actual_groups]
    return torch.stack([lhs @ torch.where(rows, rhs, torch.zeros_like(rhs)) for rows in inside])


def quantized_matmul_int8(
    x: torch.Tensor,
    w: torch.Tensor,
    scalar: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    block_size: int | None = None,
    quantize_activation: bool | None = False,
    **tuning: Any,
) -> torch.Tensor:
    """x (rows, in) times an int8 weight w (out, in) with one scale (and zero point) per output channel.

    quantize_activation: x is rounded to int8 too, with one scale per row. Block-wise weights raise UnsupportedOperationError.
    """
    if block_size not in (None, -1):
        raise UnsupportedOperationError("quantized_matmul_int8 takes no block_size: dequantise block-wise weights and multiply")
    weight = w.float() if zero_point is None else w.float() - zero_point.float()[:, None]
    if quantize_activation:
        step = x.abs().amax(dim=-1, keepdim=True).float() / 127.0
        rounded = torch.round(x.float() / torch.where(step == 0, torch.ones_like(step), step))
        product = (rounded @ weight.transpose(0, 1)) * step
    else:
        product = x.float() @ weight.transpose(0, 1)
    return (product * scalar.float()[None, :]).to(x.dtype)


def make_kernel_from_pallas(kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function over xla tensors from a jax function that calls Pallas kernels; recorded like an operation, not differentiable.

    Off TPU, kernels for TPU are interpreted. output_shape_dtype_fn: as upstream has it; the results say their own shapes.
    """

    def interpreted(*args: Any, **kwargs: Any) -> Any:
        pallas_tpu = importlib.import_module("jax.experimental.pallas.tpu")  # slow to import
        with pallas_tpu.force_tpu_interpret_mode():
            return kernel(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        runtime, builder = (importlib.import_module(f"torch_xla.{name}") for name in ("runtime", "core.xla_builder"))
        function = kernel if runtime.device_type() == "TPU" else interpreted
        return builder.call_jax(function, args, kwargs, getattr(kernel, "__name__", "pallas"))

    return call


def trace_pallas(kernel: Callable[..., Any], *args: Any, static_argnums: Any = None, static_argnames: Any = None, **kwargs: Any) -> Any:
    """Raises UnsupportedOperationError: kernels are not passed around as Mosaic text here."""
    raise UnsupportedOperationError(
        "trace_pallas gives upstream's Mosaic payload, which nothing here takes: call the kernel with make_kernel_from_pallas, "
        "or torch_xla.core.xla_builder.call_jax"
    )
