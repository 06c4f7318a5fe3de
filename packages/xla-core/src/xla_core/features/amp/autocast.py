"""Autocast for XLA devices. The op table says which operations are cast."""

from __future__ import annotations

from typing import Any

import torch


class autocast(torch.autocast):
    """`torch.autocast("xla", ...)`, with bfloat16 unless told otherwise; a context manager and a decorator.

    device: an XLA device or its text. Other dtypes than the device supports warn and leave autocast off.
    """

    def __init__(
        self, device: torch.device | str, enabled: bool = True, dtype: torch.dtype | None = None, cache_enabled: bool | None = True
    ) -> None:
        device_type = torch.device(device).type
        if device_type != "xla":
            raise ValueError(f"torch_xla.amp.autocast is for XLA devices, got {str(device)!r}; use torch.autocast({device_type!r}) there")
        chosen: Any = torch.bfloat16 if dtype is None else dtype
        super().__init__("xla", dtype=chosen, enabled=enabled, cache_enabled=cache_enabled)
