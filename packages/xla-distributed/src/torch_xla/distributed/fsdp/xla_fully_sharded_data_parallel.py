"""The wrapper, and what goes with it."""

from __future__ import annotations

from math import inf

from torch_xla.utils.checkpoint import chkpt_status
from xla_distributed.fsdp.containers import apply_to_tensors, collect_tensors
from xla_distributed.fsdp.wrapper import FLOAT_DTYPES, TrainingState, XlaFullyShardedDataParallel

XLA_DISABLE_FUNCTIONALIZATION = False

__all__ = [
    "FLOAT_DTYPES",
    "TrainingState",
    "XLA_DISABLE_FUNCTIONALIZATION",
    "XlaFullyShardedDataParallel",
    "apply_to_tensors",
    "chkpt_status",
    "collect_tensors",
    "inf",
]
