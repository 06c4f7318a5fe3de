"""Planners of `torch.distributed.checkpoint` for tensors on `xla`."""

from xla_serialization.torch_formats.dcp_planners import SPMDLoadPlanner, SPMDSavePlanner

__all__ = ["SPMDLoadPlanner", "SPMDSavePlanner"]
