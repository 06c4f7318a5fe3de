"""An optimizer whose state and work the replicas share among them."""

from xla_distributed.zero import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]
