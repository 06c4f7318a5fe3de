"""Callbacks for values that are being computed."""

from __future__ import annotations

import threading

import torch

from torch_xla.experimental.callback import on_ready_callback, on_ready_event
from xla_core.base import metrics


def test_pending_work_is_launched_and_the_event_set() -> None:
    executions = metrics.counter("ExecuteComputation")
    pending = torch.ones(4, 4).to("xla") @ torch.ones(4, 4).to("xla")
    assert on_ready_event(pending).wait(timeout=60)
    assert metrics.counter("ExecuteComputation") == executions + 1
    assert pending[0, 0].item() == 4.0


def test_the_callback_runs_once_in_another_thread() -> None:
    done = threading.Event()
    threads: list[str] = []

    def callback() -> None:
        threads.append(threading.current_thread().name)
        done.set()

    on_ready_callback(torch.ones(2).to("xla"), callback)
    assert done.wait(timeout=60) and threads == ["xla-on-ready"]
