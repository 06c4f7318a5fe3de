"""The operators of flash attention: their reference, JAX's kernels for it, their shapes, on one device or over a mesh."""

from __future__ import annotations

import ast
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_core.ops.nn.attention.blocks import flash_blocks
from xla_core.ops.nn.attention.gpu_kernel import attention_on_gpu, takes_on_gpu
from xla_core.ops.nn.attention.scores import both, causal, masked, weighted, wide
from xla_core.ops.nn.kernel_checks import attended, check_floating, check_integers, check_shape
from xla_core.ops.nn.over_mesh import check_spec, over_mesh
from xla_core.ops.platforms import PlatformKernel
from xla_core.ops.table import Context
from xla_core.ops.xla_namespace import as_differentiated, contiguous_like, define

_WHAT = "flash attention"
_BLOCK = 128  # rows of the smallest block of a kernel
Maybe = Any


def _scores(q: jax.Array, k: jax.Array, is_causal: bool, q_ids: Maybe, kv_ids: Maybe, sm_scale: float, ab: Maybe) -> jax.Array:
    """(q·kᵀ + ab)·sm_scale, hidden across segments and after the query."""
    scores = wide(q) @ jnp.swapaxes(wide(k), -1, -2)
    if ab is not None:
        scores = scores + ab.astype(scores.dtype)
    if sm_scale != 1.0:
        scores = scores * sm_scale
    same = None if q_ids is None or kv_ids is None else q_ids[:, None, :, None] == kv_ids[:, None, None, :]
    return masked(scores, both(same, causal(q.shape[-2], k.shape[-2]) if is_causal else None))


def _reference(
    q: jax.Array, k: jax.Array, v: jax.Array, is_causal: bool, q_ids: Maybe, kv_ids: Maybe, sm_scale: float, ab: Maybe, kind: str = ""
) -> jax.Array:
    return weighted(_scores(q, k, is_causal, q_ids, kv_ids, sm_scale, ab), v).astype(q.dtype)


def _blocked(q: jax.Array, k: jax.Array) -> bool:
    return q.shape[-2] % _BLOCK == 0 and k.shape[-2] % _BLOCK == 0 and q.dtype == k.dtype and q.dtype != np.float64


def _on_tpu(
    q: jax.Array, k: jax.Array, v: jax.Array, is_causal: bool, q_ids: Maybe, kv_ids: Maybe, sm_scale: float, ab: Maybe, kind: str = ""
) -> jax.Array | None:
    """JAX's Pallas kernel; it takes lengths that are multiples of 128."""
    if not _blocked(q, k) or (q_ids is None) != (kv_ids is None):
        return None
    from jax.experimental.pallas.ops.tpu import flash_attention as native  # slow to import

    rows, columns = flash_blocks(q.shape[-2], k.shape[-2], q.shape[-1], q.dtype.itemsize, ab is not None, kind)
    sizes = native.BlockSizes(
        block_b=1,
        **dict.fromkeys(("block_q", "block_q_major_dkv", "block_q_dkv", "block_q_dq"), rows),
        **dict.fromkeys(("block_k_major", "block_k", "block_k_major_dkv", "block_k_dkv", "block_k_major_dq", "block_k_dq"), columns),
    )
    segments = None if q_ids is None else native.SegmentIds(q_ids, kv_ids)
    ab = None if ab is None else jnp.broadcast_to(ab, (*q.shape[:3], k.shape[2]))
    found: jax.Array = native.flash_attention(q, k, v, ab, segments, causal=is_causal, sm_scale=sm_scale, block_sizes=sizes)
    return found


def _on_gpu(
    q: jax.Array, k: jax.Array, v: jax.Array, is_causal: bool, q_ids: Maybe, kv_ids: Maybe, sm_scale: float, ab: Maybe, kind: str = ""
) -> jax.Array | None:
    """JAX's Triton kernel: without bias, segments only where queries and keys have the same."""
    if ab is not None or q_ids is not kv_ids or not takes_on_gpu(q, k, v):
        return None
    return attention_on_gpu(q, k, v, q_ids, is_causal, sm_scale)


ATTENTION = PlatformKernel(_reference, tpu=_on_tpu, gpu=_on_gpu)


def _attend(
    context: Context,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    causal: bool,
    q_segment_ids: Maybe,
    kv_segment_ids: Maybe,
    sm_scale: float,
    ab: Maybe,
    partition_spec: str | None,
    mesh: str | None,
) -> jax.Array:
    given = () if partition_spec is None else tuple(ast.literal_eval(partition_spec))
    spec = (*given, *(None,) * (4 - len(given)))
    if partition_spec is None or spec[2] is not None or spec[3] is not None:
        mesh = None  # a device needs all keys
    ids = (spec[0], None)
    bias = tuple(None if ab is None or ab.shape[place] == 1 else spec[place] for place in (0, 1)) + (None, None)

    def whole(q: jax.Array, k: jax.Array, v: jax.Array, q_ids: Maybe, kv_ids: Maybe, ab: Maybe) -> Any:
        return ATTENTION(context.platform, q, k, v, causal, q_ids, kv_ids, sm_scale, ab, context.kind)

    found: jax.Array = over_mesh(context, whole, mesh, [spec] * 3 + [ids] * 2 + [bias], [q, k, v, q_segment_ids, kv_segment_ids, ab], spec)
    return found


def _forward(context: Context, q: jax.Array, k: jax.Array, v: jax.Array, ab: Maybe, ctx_grad: Any, **arguments: Any) -> list[jax.Array]:
    attend = as_differentiated(_attend, ("q", "k", "v", "ab")) if any(ctx_grad) else _attend
    output = attend(context, q=q, k=k, v=v, ab=ab, **arguments)
    ids = arguments["q_segment_ids"], arguments["kv_segment_ids"]
    scores = _scores(q, k, arguments["causal"], *ids, arguments["sm_scale"], ab)  # not computed unless somebody keeps what follows
    largest = scores.max(-1)
    total = jnp.exp(scores - largest[..., None]).sum(-1)
    return [output, q, k, v, total, largest, jnp.zeros((0,), q.dtype) if ab is None else ab]


def _backward(
    context: Context,
    grad_output: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    o: Maybe,
    l: Maybe,  # noqa: E741
    m: Maybe,
    ab: Maybe,
    q_full_shape: Any,
    kv_full_shape: Any,
    ab_full_shape: Any,
    ctx_grad: Any,
    **arguments: Any,
) -> list[jax.Array]:
    inputs = [q, k, v] if ab is None else [q, k, v, ab]
    output, pull = jax.vjp(lambda q, k, v, ab=None: _attend(context, q, k, v, ab=ab, **arguments), *inputs)
    found = list(pull(grad_output.astype(output.dtype)))
    return found if ab is not None else [*found, jnp.zeros((0,), q.dtype)]


def _output(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ab: torch.Tensor | None = None,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    partition_spec: str | None = None,
    mesh: str | None = None,
    **rest: Any,
) -> torch.Tensor:
    found = attended(_WHAT, q, k, v)
    if q.shape[1] != k.shape[1]:
        raise ValueError(
            f"flash attention has as many key heads as query heads, got {k.shape[1]} for {q.shape[1]}: "
            "repeat_interleave them, or call splash_attention, which shares them"
        )
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ValueError("flash attention takes q_segment_ids and kv_segment_ids, both or neither")
    check_integers(_WHAT, q_segment_ids=q_segment_ids, kv_segment_ids=kv_segment_ids)
    check_shape(_WHAT, "q_segment_ids", q_segment_ids, (q.shape[0], q.shape[2]))
    check_shape(_WHAT, "kv_segment_ids", kv_segment_ids, (k.shape[0], k.shape[2]))
    check_floating(_WHAT, ab=ab)
    scores = (*q.shape[:3], k.shape[2])
    if ab is not None and (ab.ndim != 4 or any(have not in (1, want) for have, want in zip(ab.shape, scores, strict=True))):
        raise ValueError(f"the bias of scores {scores} has that shape, or 1 in places, got {tuple(ab.shape)}")
    check_spec(partition_spec, mesh, 4)
    return found


def fa_custom_forward_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    q_segment_ids: torch.Tensor | None,
    kv_segment_ids: torch.Tensor | None,
    sm_scale: float,
    ab: torch.Tensor | None,
    partition_spec: str | None,
    mesh: str | None,
    ctx_grad: list[bool],
) -> tuple[torch.Tensor, ...]:
    """Empty results of `torch.ops.xla.fa_custom_forward`: output, q, k, v, the rows' sums and maxima in float32, and the bias."""
    rows = q.new_empty(q.shape[:-1], dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)
    bias = q.new_empty(0) if ab is None else contiguous_like(ab)
    output = _output(q, k, v, ab, q_segment_ids, kv_segment_ids, partition_spec, mesh)
    return output, contiguous_like(q), contiguous_like(k), contiguous_like(v), rows, torch.empty_like(rows), bias


def fa_custom_backward_fake(
    grad_output: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor | None,
    l: torch.Tensor | None,  # noqa: E741
    m: torch.Tensor | None,
    q_segment_ids: torch.Tensor | None,
    kv_segment_ids: torch.Tensor | None,
    ab: torch.Tensor | None,
    causal: bool,
    sm_scale: float,
    partition_spec: str | None,
    mesh: str | None,
    q_full_shape: list[int],
    kv_full_shape: list[int],
    ab_full_shape: list[int] | None,
    ctx_grad: list[bool],
) -> tuple[torch.Tensor, ...]:
    """Empty results of `torch.ops.xla.fa_custom_backward`, which does not read o, l and m: gradients of q, k, v and ab (empty if None)."""
    output = _output(q, k, v, ab, q_segment_ids, kv_segment_ids, partition_spec, mesh)
    check_shape(_WHAT, "gradients", grad_output, output.shape)
    return contiguous_like(q), contiguous_like(k), contiguous_like(v), q.new_empty(0) if ab is None else contiguous_like(ab)


FORWARD = define(
    "fa_custom_forward(Tensor q, Tensor k, Tensor v, bool causal, Tensor? q_segment_ids, Tensor? kv_segment_ids, float sm_scale, "
    "Tensor? ab, str? partition_spec, str? mesh, bool[] ctx_grad) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _forward,
    fa_custom_forward_fake,
)
BACKWARD = define(
    "fa_custom_backward(Tensor grad_output, Tensor q, Tensor k, Tensor v, Tensor? o, Tensor? l, Tensor? m, Tensor? q_segment_ids, "
    "Tensor? kv_segment_ids, Tensor? ab, bool causal, float sm_scale, str? partition_spec, str? mesh, SymInt[] q_full_shape, "
    "SymInt[] kv_full_shape, SymInt[]? ab_full_shape, bool[] ctx_grad) -> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    fa_custom_backward_fake,
)
SEGMENTED = define(
    "segmented_flash_attention(Tensor q, Tensor k, Tensor v, bool causal, Tensor? q_segment_ids, Tensor? kv_segment_ids, float sm_scale, "
    "Tensor? ab, str? partition_spec, str? mesh) -> Tensor",
    _attend,
    _output,
    ("q", "k", "v", "ab"),
    keeps=True,
)


def _plain(context: Context, q: jax.Array, k: jax.Array, v: jax.Array, casual: bool) -> Any:
    return ATTENTION(context.platform, q, k, v, casual, None, None, 1.0, None, context.kind)


PLAIN = define(
    "flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor",  # as users call it by keyword
    _plain,
    _output,
    ("q", "k", "v"),
    keeps=True,
)
