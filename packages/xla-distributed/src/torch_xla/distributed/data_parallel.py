"""One model on several devices of one process."""

from xla_distributed.data_parallel import Context, DataParallel

__all__ = ["Context", "DataParallel"]
