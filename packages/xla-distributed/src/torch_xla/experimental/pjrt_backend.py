"""The old name of `torch_xla.distributed.xla_backend`."""

from torch_xla.distributed.xla_backend import ProcessGroupXla

__all__ = ["ProcessGroupXla"]
