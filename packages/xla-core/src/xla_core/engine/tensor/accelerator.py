"""Serve `torch.accelerator`: its functions are C++, which cannot call a device that was added from Python."""

from __future__ import annotations

from typing import Any

from xla_core.base import private_torch
from xla_core.engine.runtime import client
from xla_core.engine.tensor.device_module import DeviceModule


def _nested(stats: dict[str, int]) -> dict[str, Any]:
    """`{"a.b.c": 1}` as `{"a": {"b": {"c": 1}}}`, which torch flattens again."""
    nested: dict[str, Any] = {}
    for name, value in stats.items():
        *path, last = name.split(".")
        level = nested
        for part in path:
            level = level.setdefault(part, {})
        level[last] = value
    return nested


def exchange(index: int) -> int:
    """Make `xla:index` this thread's default, unless negative. Returns the index of the one before."""
    before = client.current_index()
    if index >= 0:
        client.set_current_index(index)
    return before


def register(module: DeviceModule) -> None:
    """Answer these calls from the device module."""
    private_torch.serve_accelerator(
        {
            "getDeviceIndex": client.current_index,
            "setDeviceIndex": client.set_current_index,
            "exchangeDevice": exchange,
            "maybeExchangeDevice": exchange,
            "getDeviceCapability": module.get_device_capability,
            "getStream": module.current_stream,
            "setStream": module.set_stream,
            "synchronizeDevice": module.synchronize,
            "isAllocatorInitialized": client.started,
            "emptyCache": module.empty_cache,
            "emptyHostCache": module.empty_cache,
            "getDeviceStats": lambda index: _nested(module.memory_stats(index)),
            "getMemoryInfo": module.mem_get_info,
            "resetPeakStats": module.reset_peak_memory_stats,
            "resetAccumulatedStats": module.reset_accumulated_memory_stats,
        }
    )
