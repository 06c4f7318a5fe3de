"""The operators of splash attention: their configuration, reference, JAX's kernel for it, their shapes, on one device or over a mesh."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from xla_core.ops.nn.attention.blocks import splash_rows
from xla_core.ops.nn.attention.gpu_kernel import attention_on_gpu, takes_on_gpu
from xla_core.ops.nn.attention.scores import both, capped, masked, weighted, wide
from xla_core.ops.nn.attention.scores import causal as below
from xla_core.ops.nn.kernel_checks import attended, check_integers, check_shape, check_soft_cap
from xla_core.ops.nn.over_mesh import check_spec, over_mesh
from xla_core.ops.platforms import PlatformKernel
from xla_core.ops.table import Context
from xla_core.ops.xla_namespace import as_differentiated, contiguous_like, define

Maybe = Any
Spec = Sequence[Any]
_WHAT = "splash attention"
_LAYOUTS = ("HEAD_DIM_MINOR", "SEQ_MINOR")


@dataclass(eq=True, frozen=True)
class SplashAttentionConfig:
    """How splash attention is tuned and divided among devices; only the last two change values.

    sa_…: block sizes (the most rows; fewer where more would not fit) and layouts of the TPU kernel. mesh: `str` of a mesh;
    qkv_partition_spec, segment_ids_partition_spec: how queries, keys and values, and segment ids are sharded over it.
    attentiontype_local_sliding: a query sees the keys at most slide_window_size from it.
    """

    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
    mesh: str | None = None
    qkv_partition_spec: Spec = (("data", "fsdp"), None, None, None)
    segment_ids_partition_spec: Spec = (("data", "fsdp"), None)
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None
    _json = ""  # no field. Written when it is made: torch.compile cannot trace that

    def __post_init__(self) -> None:
        if self.attentiontype_local_sliding and (self.slide_window_size is None or self.slide_window_size < 1):
            raise ValueError(f"local sliding attention needs a slide_window_size of 1 or more, got {self.slide_window_size}")
        for name in "qkv":
            if getattr(self, f"sa_{name}_layout") not in _LAYOUTS:
                raise ValueError(f"sa_{name}_layout is one of {', '.join(_LAYOUTS)}, got {getattr(self, f'sa_{name}_layout')!r}")
        object.__setattr__(self, "_json", json.dumps(asdict(self)))

    def to_json(self) -> str:
        """All of it as JSON, as operations take it."""
        return self._json

    @classmethod
    def from_json(cls, data: str) -> SplashAttentionConfig:
        """The configuration of such a text. Raises ValueError for another, TypeError for unknown names."""
        try:
            found = json.loads(data)
        except json.JSONDecodeError as error:
            raise ValueError(f"no configuration of splash attention: {data!r}") from error
        names = {field.name for field in fields(cls)}
        if not isinstance(found, dict) or not found.keys() <= names:
            raise TypeError(f"no configuration of splash attention: {data!r}")
        return cls(**{name: _as_tuples(value) for name, value in found.items()})


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(item) for item in value) if isinstance(value, list) else value


def _reference(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: Maybe,
    is_causal: bool,
    config: SplashAttentionConfig,
    soft_cap: float | None,
    kind: str = "",
) -> jax.Array:
    groups = q.shape[1] // k.shape[1]
    keys, values = (jnp.repeat(wide(part), groups, axis=1) for part in (k, v))
    scores = capped(wide(q) @ jnp.swapaxes(keys, -1, -2), soft_cap)
    queries, length = scores.shape[-2:]
    visible = below(queries, length) if is_causal else None
    if config.attentiontype_local_sliding and config.slide_window_size is not None:
        distance = jnp.abs(jnp.arange(queries)[:, None] - jnp.arange(length)[None, :])
        visible = both(visible, distance <= config.slide_window_size)
    if ids is not None:
        visible = both(visible, ids[:, None, :, None] == ids[:, None, None, :])
    return weighted(masked(scores, visible), values).astype(q.dtype)


def _on_tpu(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: Maybe,
    is_causal: bool,
    config: SplashAttentionConfig,
    soft_cap: float | None,
    kind: str = "",
) -> jax.Array | None:
    """JAX's Pallas kernel, for lengths that are multiples of 128."""
    queries, keys = q.shape[2], k.shape[2]
    if queries % 128 or keys % 128 or q.dtype == np.float64 or (ids is not None and queries != keys):
        return None
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as native  # slow to import
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    mask: Any = masks.CausalMask((queries, keys)) if is_causal else masks.FullMask((queries, keys))
    if config.attentiontype_local_sliding:
        window = config.slide_window_size
        mask = masks.LogicalAnd(mask, masks.LocalMask((queries, keys), window_size=(window, window), offset=0))
    call = native.make_splash_mha(
        mask=masks.MultiHeadMask([mask] * q.shape[1]),
        head_shards=1,
        q_seq_shards=1,
        block_sizes=_block_sizes(
            native, config, queries, keys, partial(splash_rows, head_dim=q.shape[3], itemsize=q.dtype.itemsize, kind=kind)
        ),
        attn_logits_soft_cap=soft_cap,
    )
    if ids is None:
        found: jax.Array = jax.vmap(call)(q, k, v)
    else:
        found = jax.vmap(lambda q, k, v, ids: call(q, k, v, native.SegmentIds(ids, ids)))(q, k, v, ids)
    return found


def _block_sizes(native: Any, config: SplashAttentionConfig, queries: int, keys: int, fitting: Callable[[int, int], int]) -> Any:
    fused = config.sa_use_fused_bwd_kernel
    layouts = {f"{name}_layout": native.QKVLayout[getattr(config, f"sa_{name}_layout")] for name in "qkv"}
    return native.BlockSizes(
        block_q=fitting(config.sa_block_q, queries),
        block_kv=fitting(config.sa_block_kv, keys),
        block_kv_compute=fitting(config.sa_block_kv_compute, keys),
        block_q_dkv=fitting(config.sa_block_q_dkv, queries),
        block_kv_dkv=fitting(config.sa_block_kv_dkv, keys),
        block_kv_dkv_compute=fitting(config.sa_block_kv_dkv_compute, keys),
        block_q_dq=None if fused else fitting(config.sa_block_q_dq, queries),
        block_kv_dq=None if fused else fitting(config.sa_block_kv_dq, keys),
        use_fused_bwd_kernel=fused,
        **layouts,
    )


def _on_gpu(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    ids: Maybe,
    is_causal: bool,
    config: SplashAttentionConfig,
    soft_cap: float | None,
    kind: str = "",
) -> jax.Array | None:
    """JAX's Triton kernel of flash attention, without window and soft cap; keys are repeated for the query heads that share them."""
    if config.attentiontype_local_sliding or soft_cap is not None or not takes_on_gpu(q, k, v):
        return None
    groups = q.shape[1] // k.shape[1]
    return attention_on_gpu(q, jnp.repeat(k, groups, axis=1), jnp.repeat(v, groups, axis=1), ids, is_causal, 1.0)


SPLASH = PlatformKernel(_reference, tpu=_on_tpu, gpu=_on_gpu)


def attend(
    context: Context,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decoder_segment_ids: Maybe,
    causal: bool,
    config: SplashAttentionConfig,
    attn_logits_soft_cap: float | None,
) -> jax.Array:
    """The attention, divided among the devices of the mesh of `config`."""
    spec, ids = config.qkv_partition_spec, config.segment_ids_partition_spec
    whole = config.mesh if tuple(spec[2:]) == (None, None) and tuple(ids[1:]) == (None,) else None  # a device needs all keys
    found: jax.Array = over_mesh(
        context,
        lambda q, k, v, ids: SPLASH(context.platform, q, k, v, ids, causal, config, attn_logits_soft_cap, context.kind),
        whole,
        [spec, spec, spec, ids],
        [query, key, value, decoder_segment_ids],
        spec,
    )
    return found


def operation(
    context: Context,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    config: str,
    decoder_segment_ids: Maybe,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> jax.Array:
    """As `attend`, by the text of a configuration."""
    chosen = SplashAttentionConfig.from_json(config)
    return attend(context, q, k, v, decoder_segment_ids, bool(causal), chosen, attn_logits_soft_cap)


def gradients(context: Context, grad_output: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, **rest: Any) -> list[jax.Array]:
    """Of q, k and v, by that of the output."""
    output, pull = jax.vjp(lambda *qkv: operation(context, *qkv, **rest), q, k, v)
    return list(pull(grad_output.astype(output.dtype)))


def _output(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: torch.Tensor | None,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> torch.Tensor:
    found = attended(_WHAT, q, k, v)
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"the query heads of splash attention are a multiple of its key heads, got {q.shape[1]} and {k.shape[1]}")
    check_integers(_WHAT, decoder_segment_ids=decoder_segment_ids)
    for length in (q.shape[2], k.shape[2]):
        check_shape(_WHAT, "decoder_segment_ids", decoder_segment_ids, (q.shape[0], length))
    check_soft_cap(_WHAT, attn_logits_soft_cap)
    chosen = SplashAttentionConfig.from_json(config)
    if chosen.mesh is not None:
        check_spec(str(chosen.qkv_partition_spec), chosen.mesh, 4)
        check_spec(str(chosen.segment_ids_partition_spec), chosen.mesh, 2)
    return found


def sa_custom_forward_fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: torch.Tensor | None,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Empty results of `torch.ops.xla.sa_custom_forward`: the output, keys and values."""
    output = _output(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)
    return output, contiguous_like(k), contiguous_like(v)


def sa_custom_backward_fake(
    grad_output: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    config: str,
    decoder_segment_ids: torch.Tensor | None,
    causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Empty results of `torch.ops.xla.sa_custom_backward`: gradients of q, k and v."""
    output = _output(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)
    check_shape(_WHAT, "gradients", grad_output, output.shape)
    return contiguous_like(q), contiguous_like(k), contiguous_like(v)


_OPTIONS = "str config, Tensor? decoder_segment_ids, bool? causal, float? attn_logits_soft_cap"
FORWARD = define(
    f"sa_custom_forward(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    lambda context, q, k, v, **rest: [as_differentiated(operation, ("q", "k", "v"))(context, q=q, k=k, v=v, **rest), k, v],
    sa_custom_forward_fake,
)
BACKWARD = define(
    f"sa_custom_backward(Tensor grad_output, Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    gradients,
    sa_custom_backward_fake,
)
WHOLE = define(
    f"splash_attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> Tensor",
    operation,
    _output,
    ("q", "k", "v"),
    keeps=True,
)
