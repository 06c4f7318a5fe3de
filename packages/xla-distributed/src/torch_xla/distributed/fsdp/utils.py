"""Checkpoints of activations, linear layers, and how gradients are reduced in buckets."""

from __future__ import annotations

from torch_xla.utils.checkpoint import checkpoint
from xla_distributed.fsdp.checkpointing import checkpoint_module
from xla_distributed.fsdp.linear import XLAPatchedLinear, apply_xla_patch_to_nn_linear
from xla_distributed.fsdp.reduction import BucketizedReduceScatter, DummyReduceScatter, dummy_all_gather, dummy_all_reduce

__all__ = [
    "BucketizedReduceScatter",
    "DummyReduceScatter",
    "XLAPatchedLinear",
    "apply_xla_patch_to_nn_linear",
    "checkpoint",
    "checkpoint_module",
    "dummy_all_gather",
    "dummy_all_reduce",
]
