"""Start one process for each device (alias `xmp`)."""

from __future__ import annotations

from xla_distributed.launch import spawn

__all__ = ["spawn"]
