"""Streams and events of device `xla`. A device has one stream: programs and copies run in the order in which they are launched."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch

from xla_core.base import private_torch
from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.private_torch import CppEvent, CppStream
from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.runtime.executor import last_launched, wait
from xla_core.engine.tensor.schema import Handler


class XLAEvent(CppEvent):  # type: ignore[misc]
    """A point in the work of a device: after all programs and copies that were launched when the event was recorded.

    Operations that are pending then are launched later, and come after it: `torch_xla.sync()` launches them.
    """

    _device: torch.device
    _token: Any
    _timed: bool
    _watch: _Watch | None

    def __new__(cls, device: Any = None, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> XLAEvent:
        """An event that is not recorded yet; enable_timing: it can be asked for `elapsed_time`.

        Raises UnsupportedOperationError for `interprocess`.
        """
        if interprocess:
            raise UnsupportedOperationError("events of xla devices cannot be shared between processes: leave interprocess off")
        event: XLAEvent = super().__new__(cls, "xla")
        event._device = recorder_of(device).device
        event._token, event._timed, event._watch = None, enable_timing, None
        return event

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing: `__new__` has set it up."""

    @property
    def device(self) -> torch.device:
        """The device of the event."""
        return self._device

    def record(self, stream: torch.Stream | None = None) -> None:
        """Put the event after all work launched on the stream's device; None: on its own device."""
        self._token = last_launched(recorder_of(self.device if stream is None else stream.device))
        if self._timed:
            self._watch = _Watch(self._token)
            self._watch.start()

    def query(self) -> bool:
        """Whether all before it has run; True if it was not recorded."""
        return self._token is None or bool(self._token.is_ready())

    def synchronize(self) -> None:
        """Wait until all before it has run."""
        _block(self._token)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Do nothing: a device runs work in the order of launches."""

    def elapsed_time(self, other: XLAEvent) -> float:
        """Milliseconds from this event to `other`. Raises ValueError without `enable_timing`, RuntimeError before both have passed."""
        if not (self._timed and other._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._watch is None or other._watch is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and other.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time: call synchronize() on them first")
        return (other._watch.ended_s() - self._watch.ended_s()) * 1e3


class _Watch(threading.Thread):
    """Takes the time at which an execution ends."""

    def __init__(self, token: Any) -> None:
        super().__init__(name="xla-event", daemon=True)
        self._token = token
        self._ended_s = 0.0

    def run(self) -> None:
        """Wait, and take the time."""
        _block(self._token)
        self._ended_s = time.perf_counter()

    def ended_s(self) -> float:
        """The time at which it ended, in seconds of `time.perf_counter`."""
        self.join()
        return self._ended_s


def _block(token: Any) -> None:
    """Wait for an execution. Ignores its failure, which is raised where its results are read."""
    if token is not None:
        try:
            token.block_until_ready()
        except RuntimeError:
            return


class XLAStream(CppStream):  # type: ignore[misc]
    """The one stream of a device."""

    def __new__(cls, device: Any = None, **_: Any) -> XLAStream:
        """The stream of `device` (None: the current one); priorities are accepted and mean nothing."""
        index = recorder_of(device).index
        stream: XLAStream = super().__new__(cls, stream_id=0, device_index=index, device_type=CppStream("xla").device_type)
        return stream

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing: `__new__` has set it up."""

    def synchronize(self) -> None:
        """Wait for all work that was launched. Raises ExecutionError if the last of it failed."""
        wait(recorder_of(self.device))

    def query(self) -> bool:
        """Whether all that was launched has run."""
        return self.record_event().query()

    def record_event(self, event: XLAEvent | None = None) -> XLAEvent:
        """`event`, or a new one, put after all work that was launched."""
        event = XLAEvent(self.device) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: torch.Event) -> None:
        """Wait for an event of another device; for one of this device there is no need."""
        if event.device != self.device:
            event.synchronize()

    def wait_stream(self, other: torch.Stream) -> None:
        """Wait for all work launched on another device."""
        if other.device != self.device:
            other.synchronize()


def _record_stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`tensor.record_stream(stream)`: the client keeps the memory of a tensor until all that reads it has run, whatever the stream."""


HANDLERS: dict[str, Handler] = {"record_stream": _record_stream}


def register() -> None:
    """Let `torch.Stream` and `torch.Event` make these."""
    private_torch.replace_in_torch(
        {
            (torch, "Stream"): lambda own: private_torch.class_by_device(own, XLAStream, by_default=True),
            (torch, "Event"): lambda own: private_torch.class_by_device(own, XLAEvent, by_default=True),
        }
    )
