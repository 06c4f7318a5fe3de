"""Bounded queues that can be closed, for producer and consumer threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueBase:
    """Base class of both queues: one condition, and the two ways of closing. Alone it holds nothing.

    Raises: ValueError for a `maxsize` below 1.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize is {maxsize}, must be at least 1")
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._write_closed = False
        self._closed = False

    def max_size(self) -> int:
        """The number of items that may wait."""
        return self._maxsize

    def close_write(self) -> None:
        """End of input: later puts are refused, waiting items can still be taken."""
        with self._changed:
            self._write_closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """End at once: waiting items are dropped, everyone who waits is woken."""
        with self._changed:
            self._write_closed = self._closed = True
            self._drop()
            self._changed.notify_all()

    def _drop(self) -> None:
        """Drop the waiting items."""


class Queue(QueueBase, Generic[T]):
    """First in, first out, at most `maxsize` items."""

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: deque[T] = deque()

    def put(self, item: T) -> bool:
        """Wait for room, then add; False if the queue was closed and the item not taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._write_closed or len(self._items) < self._maxsize)
            if self._write_closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self) -> T | None:
        """Wait for an item; None once the queue is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._write_closed or bool(self._items))
            if not self._items:
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def _drop(self) -> None:
        self._items.clear()


class KeydQueue(QueueBase, Generic[T]):
    """Items by key, at most `maxsize` of them; takers ask for a key, in any order.

    The taker whose key is missing lets one put exceed `maxsize`: otherwise a queue full of other keys would never move.
    """

    def __init__(self, maxsize: int = 1024) -> None:
        super().__init__(maxsize)
        self._items: dict[Hashable, T] = {}
        self._awaited: dict[Hashable, int] = {}

    def put(self, key: Hashable, item: T) -> bool:
        """Wait for room, then add; False if the queue was closed. Raises: KeyError if `key` already waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._write_closed or len(self._items) < self._maxsize or key in self._awaited)
            if self._write_closed:
                return False
            if key in self._items:
                raise KeyError(f"an item with key {key!r} already waits in the queue")
            self._items[key] = item
            self._changed.notify_all()
            return True

    def get(self, key: Hashable) -> T | None:
        """Wait for the item put under `key` and take it; None once the queue is closed without it."""
        with self._changed:
            self._awaited[key] = self._awaited.get(key, 0) + 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._write_closed or key in self._items)
            finally:
                self._awaited[key] -= 1
                if not self._awaited[key]:
                    del self._awaited[key]
            item = self._items.pop(key, None)
            self._changed.notify_all()
            return item

    def _drop(self) -> None:
        self._items.clear()
