"""Flash attention: over (batch, heads, length, head_dim), with segments, bias and gradients, on one device or over a mesh."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.features.kernels.gradients import differentiated
from xla_core.features.kernels.meshes import texts
from xla_core.ops.nn.attention import flash_kernel


class FlashAttention(torch.autograd.Function):
    """`flash_attention` as a function to apply, with all arguments in line."""

    @staticmethod
    def prepare_segment_ids(
        q_segment_ids: torch.Tensor | None, kv_segment_ids: torch.Tensor | None
    ) -> tuple[Any, torch.Tensor | None, torch.Tensor | None]:
        """A pair of both ids (None if either is absent), and each of them, as 32-bit integers."""
        first = None if q_segment_ids is None else q_segment_ids.to(torch.int32)
        second = first  # one tensor for both stays one: the kernel for GPUs knows one kind of segments
        if kv_segment_ids is not q_segment_ids:
            second = None if kv_segment_ids is None else kv_segment_ids.to(torch.int32)
        return None if first is None or second is None else (first, second), first, second

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        q_segment_ids: torch.Tensor | None,
        kv_segment_ids: torch.Tensor | None,
        sm_scale: float,
        ab: torch.Tensor | None,
        partition_spec: Any,
        mesh: Any,
    ) -> torch.Tensor:
        """The output, as `flash_attention` describes it."""
        _, q_ids, kv_ids = FlashAttention.prepare_segment_ids(q_segment_ids, kv_segment_ids)
        spec, devices = texts(partition_spec, mesh)
        wanted = list(ctx.needs_input_grad)
        result = flash_kernel.FORWARD(q, k, v, causal, q_ids, kv_ids, sm_scale, ab, spec, devices, wanted)
        ctx.save_for_backward(q, k, v, q_ids, kv_ids, ab)
        ctx.rest = causal, sm_scale, spec, devices
        return result[0]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of q, k, v and ab."""
        q, k, v, q_ids, kv_ids, ab = ctx.saved_tensors
        shapes = list(q.shape), list(k.shape), None if ab is None else list(ab.shape)
        wanted = list(ctx.needs_input_grad)
        gradients = flash_kernel.BACKWARD(grad_output, q, k, v, None, None, None, q_ids, kv_ids, ab, *ctx.rest, *shapes, wanted)
        grads = [grad if needed else None for grad, needed in zip(gradients, [*wanted[:3], wanted[7]], strict=True)]
        return *grads[:3], None, None, None, None, grads[3], None, None


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

    q_segment_ids, kv_segment_ids: (batch, length); a query sees the keys of its own segment, and the mean of all values if that has
        none. ab: added to the scores; its dimensions may be 1.
    partition_spec: how q, k, v are sharded over `mesh` (that of the process if None): each device runs the kernel for its batches and
        heads. Without effect where it does not divide them evenly, or shards the length: then the compiler divides the work.
    """
    _, q_ids, kv_ids = FlashAttention.prepare_segment_ids(q_segment_ids, kv_segment_ids)
    spec, devices = texts(partition_spec, mesh)
    derived = differentiated(q, k, v, ab)
    result: torch.Tensor = flash_kernel.SEGMENTED(q, k, v, causal, q_ids, kv_ids, sm_scale, ab, spec, devices, derived)
    return result


def flash_attention_xla(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """softmax(q·kᵀ)·v over (batch, heads, length, head_dim); differentiable."""
    result: torch.Tensor = flash_kernel.PLAIN(q, k, v, causal, differentiated(q, k, v))
    return result


flash_attention_non_xla = flash_attention_xla  # which takes CPU tensors too


def non_xla_attetion(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, attention_type: str) -> torch.Tensor:
    """softmax(q·kᵀ)·v in stock torch, for tensors of any device; attention_type: what it stands in for."""
    return torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v


def safe_empty_like(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """An empty tensor like this one; None for None."""
    return None if tensor is None else torch.empty_like(tensor)


def generate_ctx_need_grad(*args: Any) -> list[bool]:
    """For each argument, whether it is a tensor that requires a gradient."""
    return [isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args]
