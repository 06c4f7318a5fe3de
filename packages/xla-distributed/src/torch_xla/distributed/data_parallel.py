"""One model on several devices of one process."""

from __future__ import annotations

from xla_distributed.data_parallel import Context, DataParallel

__all__ = ["Context", "DataParallel"]
