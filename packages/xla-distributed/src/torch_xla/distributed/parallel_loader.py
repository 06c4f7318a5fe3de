"""Loaders that upload batches while the device computes (alias `pl`)."""

from xla_distributed.loader import MpDeviceLoader, ParallelLoader, PerDeviceLoader

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader"]
