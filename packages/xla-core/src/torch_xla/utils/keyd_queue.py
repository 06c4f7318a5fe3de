"""Bounded queues that can be closed."""

from __future__ import annotations

from xla_core.facade.keyd_queue import KeydQueue, Queue

__all__ = [
    "KeydQueue",
    "Queue",
]
