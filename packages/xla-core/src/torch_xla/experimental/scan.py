"""A loop over the first dimension of tensors, compiled as one."""

from xla_core.features.control_flow.scan import scan
from xla_core.features.control_flow.turns import value_and_grad_partitioned

__all__ = ["scan", "value_and_grad_partitioned"]
