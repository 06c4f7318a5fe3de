"""The wrapper, and what goes with it."""

from math import inf as inf

from torch_xla.utils.checkpoint import chkpt_status as chkpt_status
from xla_distributed.fsdp.containers import apply_to_tensors as apply_to_tensors
from xla_distributed.fsdp.containers import collect_tensors as collect_tensors
from xla_distributed.fsdp.wrapper import FLOAT_DTYPES as FLOAT_DTYPES
from xla_distributed.fsdp.wrapper import TrainingState as TrainingState
from xla_distributed.fsdp.wrapper import XlaFullyShardedDataParallel as XlaFullyShardedDataParallel

XLA_DISABLE_FUNCTIONALIZATION = False

__all__ = [name for name in dir() if not name.startswith("__")]
