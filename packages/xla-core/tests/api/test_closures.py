"""Runners of step closures."""

from __future__ import annotations

import logging
import threading

import pytest

from torch_xla.utils.closures import AsyncClosureHandler, ClosureHandler
from xla_core.base import config


def worker(handler: AsyncClosureHandler) -> threading.Thread | None:
    return handler._thread


def finish(handler: AsyncClosureHandler) -> None:
    thread = worker(handler)
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()


def test_sync_closures_run_in_order_and_an_error_loses_the_rest() -> None:
    seen: list[int] = []

    def fail() -> None:
        raise KeyError("boom")

    with pytest.raises(KeyError, match="boom"):
        ClosureHandler().run_all([lambda: seen.append(1), lambda: seen.append(2), fail, lambda: seen.append(3)])
    assert seen == [1, 2]


def test_async_closures_run_in_order_in_one_other_thread() -> None:
    seen: list[tuple[int, int]] = []
    handler = AsyncClosureHandler()
    gate = threading.Event()

    def note(i: int) -> None:
        gate.wait(60)
        seen.append((i, threading.get_ident()))

    handler.run_all([lambda i=i: note(i) for i in range(20)])  # type: ignore[misc]
    assert seen == []
    gate.set()
    finish(handler)
    assert [i for i, _ in seen] == list(range(20))
    assert len({thread for _, thread in seen}) == 1 and seen[0][1] != threading.get_ident()


def test_idle_thread_ends_and_the_next_closure_starts_another() -> None:
    handler = AsyncClosureHandler()
    seen: list[str] = []
    for word in ("a", "b"):
        handler.run(lambda word=word: seen.append(word))  # type: ignore[misc]
        finish(handler)
        assert worker(handler) is None
    assert seen == ["a", "b"]


def test_blocks_when_full() -> None:
    handler = AsyncClosureHandler(max_queue_size=1)
    gate, running = threading.Event(), threading.Event()
    seen: list[int] = []

    def hold() -> None:
        running.set()
        gate.wait(60)

    handler.run(hold)
    assert running.wait(60)
    handler.run(lambda: seen.append(1))  # fills the queue
    third = threading.Thread(target=handler.run, args=(lambda: seen.append(2),))
    third.start()
    third.join(0.05)
    assert third.is_alive()
    gate.set()
    third.join(60)
    finish(handler)
    assert seen == [1, 2]


def test_async_error_surfaces_at_the_next_hand_over(caplog: pytest.LogCaptureFixture) -> None:
    handler = AsyncClosureHandler()
    gate = threading.Event()
    seen: list[int] = []

    def fail() -> None:
        gate.wait(60)
        raise ValueError("bad batch")

    handler.run_all([fail, lambda: seen.append(1), lambda: seen.append(2)])
    gate.set()
    with caplog.at_level(logging.ERROR):
        finish(handler)
    assert "asynchronous step closure failed" in caplog.text
    with pytest.raises(RuntimeError, match="bad batch.*; 2 closures behind it were dropped") as caught:
        handler.run(lambda: seen.append(3))
    assert isinstance(caught.value.__cause__, ValueError)
    handler.run(lambda: seen.append(4))
    finish(handler)
    assert seen == [4]


def test_a_full_queue_is_released_by_a_failure() -> None:
    handler = AsyncClosureHandler(max_queue_size=1)
    gate, running = threading.Event(), threading.Event()
    errors: list[BaseException | None] = []

    def fail() -> None:
        running.set()
        gate.wait(60)
        raise ValueError

    def hand_over() -> None:
        try:
            handler.run(lambda: None)
        except RuntimeError as error:
            errors.append(error.__cause__)

    handler.run(fail)
    assert running.wait(60)
    handler.run(lambda: None)
    blocked = threading.Thread(target=hand_over)
    blocked.start()
    gate.set()
    blocked.join(60)
    assert [type(error) for error in errors] == [ValueError]


def test_length_from_the_environment() -> None:
    with config.override(config.MAX_ASYNC_QUEUE, 2):
        assert AsyncClosureHandler(max_queue_size=7)._max_queue_size == 2
    with config.override(config.MAX_ASYNC_QUEUE, None):
        assert AsyncClosureHandler(max_queue_size=7)._max_queue_size == 7
        assert AsyncClosureHandler()._max_queue_size == 100
        with pytest.raises(ValueError, match="at least 1"):
            AsyncClosureHandler(max_queue_size=0)
