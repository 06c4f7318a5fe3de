"""Memory in use on a device, and the most that was in use."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import jax

from xla_core.engine.graph.pending_graph import Recorder
from xla_core.engine.runtime import client


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes on one device: in use now, the most in use since the last reset (or start), and in total."""

    used: int
    peak: int
    limit: int


@dataclass(slots=True)
class _Peak:
    """seen: the most that a call has seen since the reset. counted: the hardware's own peak at the reset, which cannot be reset."""

    seen: int = 0
    counted: int = 0


_peaks: dict[Recorder, _Peak] = {}


def memory_use(recorder: Recorder) -> MemoryUse:
    """Used and total memory of a device. On the CPU: live buffers, and the physical memory as limit.

    On hardware that reports no peak, the peak is the most that a call has seen.
    """
    used, counted, limit = _measured(recorder)
    peak = _peaks.setdefault(recorder, _Peak())
    peak.seen = max(peak.seen, used, counted if counted > peak.counted else 0)
    return MemoryUse(used, peak.seen, limit)


def memory_limit(recorder: Recorder) -> int:
    """Bytes that a device has in total: on hardware that reports none, as the CPU, the physical memory."""
    return _limit(client.jax_device(recorder).memory_stats() or {})


def reset_peak(recorder: Recorder) -> None:
    """Count the peak from now on."""
    used, counted, _ = _measured(recorder)
    _peaks[recorder] = _Peak(used, counted)


def _measured(recorder: Recorder) -> tuple[int, int, int]:
    device = client.jax_device(recorder)
    stats = device.memory_stats() or {}
    used = int(stats.get("bytes_in_use", 0)) if stats else _live_bytes(device)
    return used, int(stats.get("peak_bytes_in_use", 0)), _limit(stats)


def _limit(stats: dict[str, int]) -> int:
    return int(stats.get("bytes_limit", 0)) or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def bytes_on_each(array: jax.Array) -> int:
    """Bytes of an array on each device that it is on."""
    return math.prod(array.sharding.shard_shape(array.shape)) * array.dtype.itemsize


def _live_bytes(device: jax.Device) -> int:
    """Bytes of the buffers on a device that are not freed; buffers that share memory are all counted."""
    live: Callable[[str], list[jax.Array]] = jax.live_arrays
    total = 0
    for array in live(device.platform):
        # Not by the data of its shards: an array keeps them once they are asked for, and they would be counted, too.
        if not array.is_deleted() and device in array.sharding.addressable_devices:
            total += bytes_on_each(array)
    return total
