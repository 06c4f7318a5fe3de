"""When a captured call is verified: recorded again instead of launched, and compared."""

from __future__ import annotations

from typing import Literal, TypeAlias

Verify: TypeAlias = int | Literal["auto"] | None
"""How often to verify: each so many calls; None: never; "auto": as `Checks` decides."""

_FIRST = 16
"""Verify so many calls after a capture."""
_SHARE = 0.03
"""The share of a step's time that verifying may take."""
_AT_LEAST = 64
"""Verify one of so many calls in any case."""
_SMOOTH = 0.2


class Checks:
    """Decides which captured calls of a function are verified.

    After a capture the first 16 are. Later, each call adds 3 % of its time to an account, from which a verified call is paid: what it takes
    longer than a launch, or nothing if an accelerator was still busy with the last call when its program was ready, because then the step
    waits for the device and not for Python. unverified: launches since a call was recorded.
    """

    def __init__(self, verify: Verify) -> None:
        self._verify = verify
        self._first = 0
        self._account = 0.0
        self._cost = 0.0
        self._launch_time: float | None = None
        self._began: float | None = None
        self.unverified = 0

    def captured(self) -> None:
        """A program was captured."""
        self._first = _FIRST

    def due(self, now: float, busy: bool) -> bool:
        """Whether the call that begins `now` (seconds) is to be verified. busy: whether an accelerator is computing the last one."""
        if self._verify is None:
            return False
        if self._verify != "auto":
            return self.unverified + 1 >= self._verify
        if self._began is not None:
            self._account = min(self._account + _SHARE * (now - self._began), self._cost)
        self._began = now
        return self._first > 0 or self.unverified + 1 >= _AT_LEAST or self._account >= self._cost or (busy and self._account >= 0)

    def launched(self, seconds: float) -> None:
        """A program was launched without the Python. seconds: what that took."""
        self.unverified += 1
        before = self._launch_time
        self._launch_time = seconds if before is None else min(seconds, before + _SMOOTH * (seconds - before))

    def verified(self, seconds: float, waited: bool) -> None:
        """A call was verified. seconds: what that took; waited: whether an accelerator was busy meanwhile."""
        self.recorded()
        if self._first > 0:
            self._first -= 1
            return
        cost = max(0.0, seconds - (self._launch_time or 0.0))
        self._cost = cost if self._cost == 0.0 else self._cost + _SMOOTH * (cost - self._cost)
        if not waited:
            self._account -= cost

    def recorded(self) -> None:
        """A call was recorded: what the function does was seen."""
        self.unverified = 0
