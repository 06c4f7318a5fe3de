"""What the writers of `torch.distributed.checkpoint` ask of a device's module: streams. Device `xla` has one, which keeps its own order."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class _Stream:
    """The order in which a device runs programs and copies."""

    device_type = "xla"

    def synchronize(self) -> None:
        """Wait for what was launched."""
        torch.get_device_module("xla").synchronize()

    def wait_stream(self, other: _Stream) -> None:
        """Nothing: it is the same stream."""


_ONLY = _Stream()


def _current_stream(device: Any = None) -> _Stream:
    return _ONLY


def _stream(stream: _Stream | None) -> AbstractContextManager[None]:
    return nullcontext()


def provide() -> None:
    """Let `torch.xla` have `current_stream` and `stream`, unless it has them."""
    module = torch.get_device_module("xla")
    for name, function in (("current_stream", _current_stream), ("stream", _stream)):
        if not hasattr(module, name):
            setattr(module, name, function)
