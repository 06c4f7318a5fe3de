"""What `torch_xla` itself has, where the releases since 2.2 defined it."""

from torch_xla import compile, device, device_count, devices, launch, manual_seed, real_devices, step, sync

__all__ = ["compile", "device", "device_count", "devices", "launch", "manual_seed", "real_devices", "step", "sync"]
