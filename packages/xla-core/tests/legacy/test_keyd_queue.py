"""Closeable bounded queues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from torch_xla.utils.keyd_queue import KeydQueue, Queue, QueueBase


class Call:
    """A call in another thread, whose result can be awaited."""

    def __init__(self, fn: Callable[..., Any], *args: Any) -> None:
        self._results: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._results.append(fn(*args)), daemon=True)
        self._thread.start()

    def blocked(self) -> bool:
        self._thread.join(0.05)
        return self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(60)
        return self._results[0]


def test_queue_keeps_order_and_blocks_when_full() -> None:
    queue: Queue[int] = Queue(maxsize=2)
    assert queue.max_size() == 2
    assert queue.put(1) and queue.put(2)
    third = Call(queue.put, 3)
    assert third.blocked()
    assert [queue.get(), queue.get(), queue.get()] == [1, 2, 3]
    assert third.result() is True


def test_queue_get_waits_for_an_item() -> None:
    queue: Queue[str] = Queue()
    taker = Call(queue.get)
    assert taker.blocked()
    queue.put("x")
    assert taker.result() == "x"


def test_queue_close_write_lets_the_rest_out() -> None:
    queue: Queue[int] = Queue(maxsize=1)
    queue.put(1)
    blocked = Call(queue.put, 2)
    queue.close_write()
    assert blocked.result() is False and queue.put(3) is False
    assert queue.get() == 1 and queue.get() is None


def test_queue_close_drops_and_wakes() -> None:
    queue: Queue[int] = Queue()
    queue.put(1)
    queue.close()
    assert queue.get() is None
    waiting: Queue[int] = Queue()
    taker = Call(waiting.get)
    waiting.close()
    assert taker.result() is None


def test_keyd_queue_serves_by_key_in_any_order() -> None:
    queue: KeydQueue[str] = KeydQueue()
    queue.put("a", "1")
    queue.put("b", "2")
    assert queue.get("b") == "2"
    taker = Call(queue.get, "c")
    assert taker.blocked()
    queue.put("c", "3")
    assert taker.result() == "3" and queue.get("a") == "1"


def test_keyd_queue_full_of_other_keys_still_serves_the_one_waited_for() -> None:
    queue: KeydQueue[int] = KeydQueue(maxsize=1)
    queue.put("a", 1)
    blocked = Call(queue.put, "b", 2)
    assert blocked.blocked()
    assert queue.get("b") == 2 and blocked.result() is True and queue.get("a") == 1


def test_keyd_queue_refuses_a_key_twice() -> None:
    queue: KeydQueue[int] = KeydQueue()
    queue.put("a", 1)
    with pytest.raises(KeyError, match="'a' already waits"):
        queue.put("a", 2)


def test_keyd_queue_closing() -> None:
    queue: KeydQueue[int] = KeydQueue()
    queue.put("a", 1)
    queue.close_write()
    assert queue.put("b", 2) is False
    assert queue.get("a") == 1 and queue.get("a") is None
    other: KeydQueue[int] = KeydQueue()
    other.put("a", 1)
    taker = Call(other.get, "b")
    other.close()
    assert taker.result() is None and other.get("a") is None


@pytest.mark.parametrize("kind", [QueueBase, Queue, KeydQueue])
def test_sizes_and_closing_are_those_of_the_base(kind: type[QueueBase]) -> None:
    queue = kind()
    assert isinstance(queue, QueueBase) and (queue.max_size(), kind(maxsize=3).max_size()) == (1024, 3)
    queue.close_write()
    queue.close()


@pytest.mark.parametrize("kind", [Queue, KeydQueue])
def test_size_must_be_positive(kind: type[Queue[int]]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        kind(maxsize=0)
