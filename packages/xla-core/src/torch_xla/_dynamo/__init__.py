"""`torch.compile` on XLA devices."""

from torch_xla._dynamo import config, dynamo_backend2, dynamo_bridge

__all__ = ["config", "dynamo_backend2", "dynamo_bridge"]
