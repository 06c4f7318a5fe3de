"""Call back when a tensor's value is computed, without waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from xla_core.engine.runtime.sync import compute
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.values import value_of


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[], object]) -> None:
    """Call `callback()` in another thread once the tensor's value is computed; launches the computation of a pending value.

    Calls it also if the computation fails: reading the tensor then raises.
    """
    value = value_of(unwrapped(tensor))
    compute([value])

    def wait() -> None:
        try:
            if value.buffer is not None:
                value.buffer.block_until_ready()
        finally:
            callback()

    threading.Thread(target=wait, name="xla-on-ready").start()


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set once the tensor's value is computed."""
    event = threading.Event()
    on_ready_callback(tensor, event.set)
    return event
