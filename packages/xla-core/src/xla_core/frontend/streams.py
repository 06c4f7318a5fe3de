"""Streams of device `xla`, which writers of `torch.distributed.checkpoint` ask for: there is one."""

from __future__ import annotations

from xla_core.runtime.executor import wait_all


class Stream:
    """The order in which a device runs programs and copies."""

    device_type = "xla"

    def synchronize(self) -> None:
        """Wait for what was launched."""
        wait_all()

    def wait_stream(self, other: Stream) -> None:
        """Nothing: it is the same stream."""


ONLY = Stream()
