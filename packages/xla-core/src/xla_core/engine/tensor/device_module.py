"""`torch.xla`: the device module that torch, and programs written for any accelerator, use."""

from __future__ import annotations

import secrets
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.base.dtypes import DTYPES
from xla_core.engine.graph import rng
from xla_core.engine.runtime import client
from xla_core.engine.runtime.executor import wait, wait_all
from xla_core.engine.runtime.memory import memory_use, reset_peak
from xla_core.engine.tensor.streams import XLAEvent, XLAStream


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """name: the hardware model. total_memory: bytes that the device can hold."""

    name: str
    total_memory: int


class DeviceModule(types.ModuleType):
    """`torch.xla`. Devices are named by `xla`, `xla:<n>`, a torch.device, an index, or None for this thread's default."""

    Stream = XLAStream
    Event = XLAEvent

    def is_available(self) -> bool:
        """Whether there is a device. Starts the client, except on the CPU, which is always there."""
        return client.device_count() > 0

    def is_initialized(self) -> bool:
        """Whether the client runs."""
        return client.started()

    @property
    def _initialized(self) -> bool:
        """`torch.utils.checkpoint` asks before it keeps random states; without them, dropout would differ in the recomputation."""
        return client.started()

    def _is_in_bad_fork(self) -> bool:
        return False

    def init(self) -> None:
        """Start the client."""
        client.client()

    def device_count(self) -> int:
        """The number of this process's devices. Starts the client, except on the CPU."""
        return client.device_count()

    def current_device(self) -> int:
        """Index of this thread's default device."""
        return client.current_index()

    def set_device(self, device: Any) -> None:
        """Make `device` this thread's default."""
        client.set_current_index(device if isinstance(device, int) else client.recorder_of(device).index)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Make `device` this thread's default inside the block."""
        before = client.current_index()
        self.set_device(device)
        try:
            yield
        finally:
            client.set_current_index(before)

    def get_device_name(self, device: Any = None) -> str:
        """The hardware model, as the client names it."""
        return str(client.jax_device(client.recorder_of(device)).device_kind)

    def get_device_properties(self, device: Any = None) -> DeviceProperties:
        """Model and memory."""
        return DeviceProperties(self.get_device_name(device), memory_use(client.recorder_of(device)).limit)

    def get_device_capability(self, device: Any = None) -> dict[str, Any]:
        """The dtypes that tensors may have, in the form of `torch.accelerator.get_device_capability`."""
        return {"supported_dtypes": set(DTYPES)}

    def can_device_access_peer(self, device: Any, peer_device: Any) -> bool:
        """False: the client copies between devices."""
        return False

    def synchronize(self, device: Any = None) -> None:
        """Wait for all work launched on `device`; None: on all devices."""
        if not client.started():
            return
        if device is None:
            wait_all()
        else:
            wait(client.recorder_of(device))

    def current_stream(self, device: Any = None) -> XLAStream:
        """The one stream of `device`."""
        return XLAStream(device)

    def default_stream(self, device: Any = None) -> XLAStream:
        """The one stream of `device`."""
        return XLAStream(device)

    def set_stream(self, stream: torch.Stream | None) -> None:
        """Make the device of `stream` this thread's default."""
        if stream is not None:
            self.set_device(stream.device)

    @contextmanager
    def stream(self, stream: torch.Stream | None) -> Iterator[None]:
        """A block whose work goes to the device of `stream`."""
        with self.device(client.current_index() if stream is None else stream.device):
            yield

    def empty_cache(self) -> None:
        """Do nothing: the client keeps no freed memory that others could use, or has no call that releases it."""

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        """Bytes in use and their peak, under the names of `torch.cuda.memory_stats`; empty before the first use of a device."""
        if not client.started():
            return {}
        use = memory_use(client.recorder_of(device))
        counters = ("allocated_bytes", "active_bytes", "reserved_bytes")
        return {f"{counter}.all.{name}": value for counter in counters for name, value in (("current", use.used), ("peak", use.peak))}

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes in use."""
        return self.memory_stats(device).get("allocated_bytes.all.current", 0)

    def max_memory_allocated(self, device: Any = None) -> int:
        """The most bytes in use since the start or the last `reset_peak_memory_stats`; on the CPU, the most that a call of these found."""
        return self.memory_stats(device).get("allocated_bytes.all.peak", 0)

    def memory_reserved(self, device: Any = None) -> int:
        """The same as `memory_allocated`."""
        return self.memory_allocated(device)

    def max_memory_reserved(self, device: Any = None) -> int:
        """The same as `max_memory_allocated`."""
        return self.max_memory_allocated(device)

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        """Measure the peak from now on."""
        if client.started():
            reset_peak(client.recorder_of(device))

    def reset_accumulated_memory_stats(self, device: Any = None) -> None:
        """Do nothing: no sums are kept."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """Free bytes, and all bytes of the device. Starts the client."""
        use = memory_use(client.recorder_of(device))
        return max(use.limit - use.used, 0), use.limit

    def manual_seed(self, seed: int) -> None:
        """Set the random state of the default device."""
        client.current_recorder().set_seed(int(seed) & rng.MASK)

    def manual_seed_all(self, seed: int) -> None:
        """Set the random state of all devices (torch.manual_seed calls this)."""
        client.set_seed_everywhere(seed)

    def seed(self) -> None:
        """Set the random state of the default device to a random number of the operating system."""
        self.manual_seed(secrets.randbits(63))

    def seed_all(self) -> None:
        """Set the random state of all devices to a random number of the operating system."""
        self.manual_seed_all(secrets.randbits(63))

    def initial_seed(self) -> int:
        """The random state of the default device: the seed, if nothing was drawn since."""
        return client.current_recorder().seed

    def get_rng_state(self, device: Any = "xla") -> torch.Tensor:
        """The random state as 16 bytes, for torch's own save and restore."""
        if not client.started():  # torch.random.fork_rng asks in programs that never use the device
            return rng.to_bytes(rng.initial_seed())
        return rng.to_bytes(client.recorder_of(device).seed)

    def set_rng_state(self, state: torch.Tensor, device: Any = "xla") -> None:
        """Restore what `get_rng_state` gave."""
        seed = rng.from_bytes(state)
        if client.started() or seed != rng.initial_seed():
            client.recorder_of(device).seed = seed

    def get_rng_state_all(self) -> list[torch.Tensor]:
        """The random states of all devices."""
        return [self.get_rng_state(index) for index in range(self.device_count())]

    def set_rng_state_all(self, states: Sequence[torch.Tensor]) -> None:
        """Restore what `get_rng_state_all` gave."""
        for index, state in enumerate(states):
            self.set_rng_state(state, index)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Dtypes that `torch.autocast('xla')` takes."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """True: XLA computes bfloat16 everywhere."""
        return True
