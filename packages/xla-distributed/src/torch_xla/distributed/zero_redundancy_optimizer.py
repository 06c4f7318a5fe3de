"""An optimizer whose state and work the replicas share among them."""

from __future__ import annotations

from xla_distributed.zero import ZeroRedundancyOptimizer

__all__ = ["ZeroRedundancyOptimizer"]
