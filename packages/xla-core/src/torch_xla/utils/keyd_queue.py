"""Bounded queues that can be closed."""

from xla_core.legacy.keyd_queue import KeydQueue, Queue, QueueBase

__all__ = ["KeydQueue", "Queue", "QueueBase"]
