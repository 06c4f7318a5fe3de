"""Streams and events of the device, as code for any accelerator uses them."""

from __future__ import annotations

import pytest
import torch

import torch_xla
from xla_core.base.errors import UnsupportedOperationError
from xla_core.engine.tensor.streams import XLAEvent, XLAStream


def launch() -> torch.Tensor:
    x = torch.rand(200, 200, device="xla")
    for _ in range(20):
        x = x @ x / 100
    torch_xla.sync()
    return x


def test_there_is_one_stream_in_which_everything_follows() -> None:
    device = torch.get_device_module("xla")
    only = device.current_stream()
    assert only == device.current_stream("xla:0") == device.default_stream() == torch.accelerator.current_stream() == torch.Stream("xla")
    assert isinstance(only, torch.Stream) and type(torch.Stream()) is XLAStream is device.Stream and only.device == torch.device("xla:0")
    with device.stream(only):
        x = launch() + 1
    device.set_stream(only)
    torch.accelerator.set_stream(only)
    only.wait_stream(device.current_stream())
    only.synchronize()
    assert only.query() and x.shape == (200, 200)


def test_events_pass_when_what_was_launched_before_has_run() -> None:
    event = torch.Event("xla")
    assert type(event) is XLAEvent is torch.xla.Event and isinstance(event, torch.Event) and event.query()  # type: ignore[attr-defined]
    assert event.device == torch.device("xla:0")
    launch()
    event.record()
    event.wait(torch.accelerator.current_stream())
    event.synchronize()
    assert event.query()
    recorded = torch.accelerator.current_stream().record_event()
    torch.accelerator.current_stream().wait_event(recorded)
    recorded.synchronize()
    with pytest.raises(UnsupportedOperationError, match="interprocess"):
        torch.Event("xla", interprocess=True)


def test_events_measure_what_runs_between_them() -> None:
    start, end = torch.Event("xla", enable_timing=True), torch.Event("xla", enable_timing=True)
    with pytest.raises(ValueError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    launch()
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(torch.Event("xla"))


def test_others_are_torchs_own() -> None:
    stream = type("Mine", (torch.Stream,), {})
    assert issubclass(stream, torch.Stream) and not isinstance(torch.Stream(), stream) and not isinstance(3, torch.Stream)
    with pytest.raises(RuntimeError):
        torch.Stream("cuda")


def test_tensors_are_told_of_streams_that_use_them() -> None:
    x = torch.ones(3, device="xla")
    x.record_stream(torch.accelerator.current_stream())
    assert (x + 1).tolist() == [2, 2, 2]
