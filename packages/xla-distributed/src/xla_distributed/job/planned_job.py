"""The job of a process that plans for the devices of a target: its other replicas are not there, and do what this one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xla_core.abi.targets import planned_devices
from xla_distributed.errors import JobError


class PlannedJob:
    """Stands for a `JobClient`: no message leaves the process, and no wait is one."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def exchange(
        self, kind: str, payload: bytes, timeout: float, what: str = "", members: Sequence[int] = (), wait: object = None
    ) -> list[bytes]:
        """The payloads of all that take part: all the same."""
        return [payload] * (len(members) or self.size)

    def leave(self, reason: str, counts: Mapping[Any, int], positions: Mapping[str, Any] | None = None) -> None:
        """Leave: there is nobody to tell."""

    def post(self, receiver: int, name: str, payload: bytes) -> None:
        """Send to a replica that is not there."""

    def take(self, expected: Any, timeout: float) -> tuple[str, bytes]:
        """Raise JobError: nobody sends."""
        raise JobError(
            f"a receive over the host from other replicas, of which a plan for {planned_devices()} devices has none: leave it out"
        )

    def has_arrived(self, senders: Any) -> bool:
        """Never: nobody sends."""
        return False
