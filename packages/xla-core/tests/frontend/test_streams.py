"""`torch.xla.current_stream` and `stream`: what code for any device asks of a device module."""

from __future__ import annotations

import torch


def test_there_is_one_stream_in_which_everything_follows() -> None:
    device = torch.get_device_module("xla")
    only = device.current_stream()
    assert only is device.current_stream("xla:0") and only.device_type == "xla"
    with device.stream(only):
        found = torch.ones(3, device="xla") + 1
    only.wait_stream(device.current_stream())
    only.synchronize()
    assert found.tolist() == [2.0, 2.0, 2.0]
