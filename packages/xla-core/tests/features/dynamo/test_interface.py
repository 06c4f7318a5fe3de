"""What torch asks of a device while it compiles is answered for xla as for its own devices."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch._dynamo import device_interface

import torch_xla  # noqa: F401  # registers the device

INTERFACE: Any = device_interface.get_interface_for_device("xla")
NOT_ANSWERED = {"get_raw_stream", "_set_stream_by_id", "raise_if_triton_unavailable"}  # of kernels that are launched from Python


def test_each_question_has_an_answer_of_its_own() -> None:
    base: Any = device_interface.DeviceInterface
    asked = {name for name, answer in vars(base).items() if not name.startswith("__") and name not in NOT_ANSWERED}
    inherited = {"get_device_properties", "is_triton_capable"}  # right as they are
    assert {name for name in asked if inspect.getattr_static(INTERFACE, name) is vars(base)[name]} == inherited
    assert {name for name in vars(base.Worker) if not name.startswith("__")} <= set(vars(INTERFACE.Worker))


def test_answers() -> None:
    assert INTERFACE is device_interface.get_interface_for_device(torch.device("xla", 0))
    assert INTERFACE.is_available() and INTERFACE.device_count() == torch.accelerator.device_count()
    assert (
        INTERFACE.get_device_properties()
        == INTERFACE.Worker.get_device_properties()
        == torch.get_device_module("xla").get_device_properties()
    )
    assert INTERFACE.is_bf16_supported() and INTERFACE.is_dtype_supported(torch.bfloat16)
    assert not INTERFACE.is_dtype_supported(torch.complex32) and not INTERFACE.is_triton_capable()
    before = INTERFACE.current_device()
    assert INTERFACE.exchange_device(0) == before and INTERFACE.maybe_exchange_device(-1) == 0
    with INTERFACE.device(0), INTERFACE.stream(INTERFACE.current_stream()):
        assert INTERFACE.current_device() == 0
    x = torch.ones(3, device="xla")
    assert x.tolist() == [1, 1, 1] and INTERFACE.memory_allocated() >= x.nbytes
    INTERFACE.synchronize()


def test_streams_and_events_in_compiled_functions() -> None:
    @torch.compile(backend="openxla")
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.get_device_module("xla").stream(torch.accelerator.current_stream()):
            return x + 1

    assert step(torch.ones(2, device="xla")).tolist() == [2, 2]
