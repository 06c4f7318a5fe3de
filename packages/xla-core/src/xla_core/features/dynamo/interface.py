"""What `torch.compile` and inductor ask of a device: its streams, events, memory and properties."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base.dtypes import DTYPES
from xla_core.engine.tensor.accelerator import exchange
from xla_core.engine.tensor.streams import XLAEvent, XLAStream


def register(interfaces: Any) -> None:
    """Answer from the device module. interfaces: torch._dynamo.device_interface."""
    module: Any = torch.get_device_module("xla")

    class Worker:
        """The answers in inductor's compiling processes."""

        set_device = staticmethod(module.set_device)
        current_device = staticmethod(module.current_device)
        get_device_properties = staticmethod(module.get_device_properties)

    class XLAInterface(interfaces.DeviceInterface):  # type: ignore[misc]
        """The answers in the process that traces."""

        Event, Stream = XLAEvent, XLAStream
        device = staticmethod(module.device)
        current_device = staticmethod(module.current_device)
        set_device = staticmethod(module.set_device)
        exchange_device = staticmethod(exchange)
        maybe_exchange_device = staticmethod(exchange)
        device_count = staticmethod(module.device_count)
        is_available = staticmethod(module.is_available)
        stream = staticmethod(module.stream)
        current_stream = staticmethod(module.current_stream)
        set_stream = staticmethod(module.set_stream)
        synchronize = staticmethod(module.synchronize)
        get_compute_capability = staticmethod(module.get_device_capability)
        is_bf16_supported = staticmethod(module.is_bf16_supported)
        memory_allocated = staticmethod(module.memory_allocated)

        @classmethod
        def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
            """Whether tensors of a dtype can be on the device."""
            return dtype in DTYPES

    XLAInterface.Worker = Worker
    interfaces.register_interface_for_device("xla", XLAInterface)
