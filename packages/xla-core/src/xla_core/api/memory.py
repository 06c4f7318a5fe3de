"""Memory in use on a device."""

from __future__ import annotations

from typing import TypedDict

import torch

from xla_core.base.budgets import budget
from xla_core.engine.runtime import client
from xla_core.engine.runtime.memory import memory_use


class MemoryInfo(TypedDict):
    """Bytes on one device; `kb_free` and `kb_total` are the same in KiB, as older releases had them.

    peak_bytes_used: the most since the start; on hardware that reports no peak, the most that a call has seen.
    """

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int
    kb_free: int
    kb_total: int


@budget()
def get_memory_info(device: torch.device | str | None = None) -> MemoryInfo:
    """Used and total memory of a device. On CPU: live buffers, and the physical memory as limit."""
    use = memory_use(client.recorder_of(device))
    return MemoryInfo(
        bytes_used=use.used,
        bytes_limit=use.limit,
        peak_bytes_used=use.peak,
        kb_free=max(0, use.limit - use.used) // 1024,
        kb_total=use.limit // 1024,
    )
