"""Several parameters in one flat one."""

from xla_distributed.fsdp.flatten import FlatLayout as State
from xla_distributed.fsdp.flatten import FlatParameter, XlaFlattenParamsWrapper
from xla_distributed.fsdp.names import replace_by_prefix_

FlatTypes = FlatParameter

__all__ = ["FlatParameter", "FlatTypes", "State", "XlaFlattenParamsWrapper", "replace_by_prefix_"]
