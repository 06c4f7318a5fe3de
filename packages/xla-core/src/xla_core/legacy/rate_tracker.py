"""Count samples per second."""

from __future__ import annotations

import time

from xla_core.base import config


class RateTracker:
    """Measures the rate of what `add` counts.

    smooth_factor: share of the previous rate in `rate()`; None takes RATE_TRACKER_SMOOTHING, 0.4.
    """

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._smooth_factor = config.RATE_TRACKER_SMOOTHING.get() if smooth_factor is None else smooth_factor
        self._created_s = self._reported_s = time.monotonic()
        self._total = self._since_report = 0.0
        self._rate: float | None = None

    def add(self, count: float) -> None:
        """Count `count` more."""
        self._total += count
        self._since_report += count

    def rate(self) -> float:
        """Count per second since the last call, smoothed from the second call on; 0.0 if no time has passed."""
        now_s = time.monotonic()
        elapsed_s = now_s - self._reported_s
        if elapsed_s <= 0.0:
            return 0.0
        new_rate = self._since_report / elapsed_s
        smoothing = self._smooth_factor
        self._rate = new_rate if self._rate is None else (1.0 - smoothing) * new_rate + smoothing * self._rate
        self._reported_s, self._since_report = now_s, 0.0
        return self._rate

    def global_rate(self) -> float:
        """Count per second since creation; 0.0 if no time has passed."""
        elapsed_s = time.monotonic() - self._created_s
        return self._total / elapsed_s if elapsed_s > 0.0 else 0.0
