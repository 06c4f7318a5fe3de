"""Memory in use on a device (api.md C49, R04)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypedDict

import jax
import torch

from xla_core.runtime import client


class MemoryInfo(TypedDict):
    """Bytes on one device; `kb_free` and `kb_total` are the same in KiB, as older releases had them.

    peak_bytes_used: the most since the start; on hardware that does not count it, the most that a call has seen.
    """

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int
    kb_free: int
    kb_total: int


_peaks: dict[int, int] = {}


def get_memory_info(device: torch.device | str | None = None) -> MemoryInfo:
    """What a device holds and can hold. On CPU: live buffers, and the physical memory as limit."""
    recorder = client.recorder_of(device)
    home = client.jax_device(recorder)
    stats = home.memory_stats() or {}
    used = int(stats.get("bytes_in_use", 0)) if stats else _live_bytes(home)
    limit = int(stats.get("bytes_limit", 0)) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    peak = _peaks[recorder.index] = max(used, _peaks.get(recorder.index, 0), int(stats.get("peak_bytes_in_use", 0)))
    return MemoryInfo(
        bytes_used=used,
        bytes_limit=limit,
        peak_bytes_used=peak,
        kb_free=max(0, limit - used) // 1024,
        kb_total=limit // 1024,
    )


def _live_bytes(device: jax.Device) -> int:
    """Bytes of the buffers on a device that are not freed; those that share memory count each."""
    live: Callable[[str], list[jax.Array]] = jax.live_arrays
    total = 0
    for array in live(device.platform):
        if not array.is_deleted():
            total += sum(shard.data.nbytes for shard in array.addressable_shards if shard.device == device)
    return total
