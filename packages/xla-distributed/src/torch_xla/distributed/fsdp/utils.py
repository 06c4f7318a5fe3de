"""Checkpoints of activations, linear layers, and how gradients are reduced in buckets."""

from torch_xla.utils.checkpoint import checkpoint as checkpoint
from xla_distributed.fsdp.checkpointing import checkpoint_module as checkpoint_module
from xla_distributed.fsdp.linear import XLAPatchedLinear as XLAPatchedLinear
from xla_distributed.fsdp.linear import apply_xla_patch_to_nn_linear as apply_xla_patch_to_nn_linear
from xla_distributed.fsdp.reduction import BucketizedReduceScatter as BucketizedReduceScatter
from xla_distributed.fsdp.reduction import DummyReduceScatter as DummyReduceScatter
from xla_distributed.fsdp.reduction import dummy_all_gather as dummy_all_gather
from xla_distributed.fsdp.reduction import dummy_all_reduce as dummy_all_reduce

__all__ = [name for name in dir() if not name.startswith("__")]
