"""Device `xla` in torch: the renamed backend key, the device module, and kernels for calls that carry no xla tensor."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from xla_core import _compat
from xla_core._compat import OpOverload
from xla_core.frontend import dispatch, streams
from xla_core.frontend.plain import tensor_behind
from xla_core.frontend.schema import is_factory
from xla_core.frontend.streams import Stream
from xla_core.ops.table import TABLE, overload_named
from xla_core.runtime import client, rng
from xla_core.runtime.executor import wait, wait_all

# Reached with xla tensors although subclass dispatch is excluded (torch.tensor moves its data so).
_WITHOUT_SUBCLASS = ("aten::_copy_from", "aten::_copy_from_and_resize")
_libraries: list[torch.library.Library] = []


class _DeviceModule(types.ModuleType):
    """`torch.xla`: what torch asks of a device module."""

    def is_available(self) -> bool:
        """Whether there is a device; starts the client."""
        return client.client().devices != ()

    def is_initialized(self) -> bool:
        """Whether the client runs."""
        return client.started()

    @property
    def _initialized(self) -> bool:
        """Asked by `torch.utils.checkpoint` before it keeps random states; without it, dropout would differ in the repetition."""
        return client.started()

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        """Devices of this process."""
        return len(client.client().devices)

    def current_device(self) -> int:
        """Index of this thread's default device."""
        return client.current_index()

    def set_device(self, device: Any) -> None:
        """Make `device` this thread's default."""
        client.set_current_index(client.recorder_of(device).index)

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        """Make `device` this thread's default inside the block."""
        before = client.current_index()
        client.set_current_index(client.recorder_of(device).index)
        try:
            yield
        finally:
            client.set_current_index(before)

    def synchronize(self, device: Any = None) -> None:
        """Wait for what was launched."""
        if not client.started():
            return
        if device is None:
            wait_all()
        else:
            wait(client.recorder_of(device))

    def current_stream(self, device: Any = None) -> Stream:
        """The only one there is."""
        return streams.ONLY

    def stream(self, stream: Stream | None) -> AbstractContextManager[None]:
        """A block whose work goes to the only stream."""
        return nullcontext()

    def manual_seed(self, seed: int) -> None:
        """Set the random state of the default device."""
        rng.set_seed(seed, client.current_recorder())

    def manual_seed_all(self, seed: int) -> None:
        """Set the random state of all devices (torch.manual_seed calls this)."""
        rng.set_seed_everywhere(seed)

    def get_rng_state(self, device: Any = "xla") -> torch.Tensor:
        """The random state as 8 bytes, for torch's own save and restore."""
        return rng.state_bytes(client.recorder_of(device))

    def set_rng_state(self, state: torch.Tensor, device: Any = "xla") -> None:
        """Restore what `get_rng_state` gave."""
        rng.set_state_bytes(state, client.recorder_of(device))

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """Dtypes that `torch.autocast('xla')` takes."""
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self) -> bool:
        """True: XLA computes bfloat16 everywhere."""
        return True


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls that reach the backend key itself: factories, and places where torch excludes subclass dispatch."""
    try:
        plan = func._xla_plan
    except AttributeError:
        plan = dispatch.plan_for(func)
    return plan(args, kwargs)


def direct(func: OpOverload) -> Any:
    """A kernel for the backend key that serves `func` as subclass dispatch would."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _fallback(func, *args, **kwargs)

    return kernel


_PREFERRED = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")  # torch runs such kernels rather than a fallback
_RIGHT = ("aten::detach", "aten::alias")  # and does well: the result shares the storage object, where the data is found


def _late(name: str) -> Any:
    """`direct` for the overload of this name, looked up at its first call."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _fallback(overload_named(name), *args, **kwargs)

    return kernel


@cache
def serve_plain_tensors() -> None:
    """Give operations a kernel for the backend key where torch would run its own, on memory of the host, for tensors of its own types."""
    kernels: Any = torch.library.Library("aten", "IMPL")
    for name in _compat.operation_names():
        if not name.startswith("aten::") or name in _RIGHT or _compat.has_kernel(name, "PrivateUse1"):
            continue
        if any(_compat.has_kernel(name, key) for key in _PREFERRED):
            kernels.impl(name.removeprefix("aten::"), _late(name), "PrivateUse1")
    _libraries.append(kernels)


def register() -> None:
    """Add device `xla` to torch. Starts no client."""
    module = _DeviceModule("torch.xla")
    _compat.register_device("xla", module)
    client.when_default_moves(lambda: _compat.redirect_moves(lambda: torch.device("xla", client.current_index())))
    _compat.guard_engine(lambda output: tensor_behind(output) is not None)
    boxed = torch.library.Library("_", "IMPL")
    boxed.fallback(_fallback, "PrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    for name in (*_WITHOUT_SUBCLASS, *(name for name in TABLE if is_factory(overload_named(name)))):
        kernels.impl(name.removeprefix("aten::"), direct(overload_named(name)), "PrivateUse1")
    _libraries.extend([boxed, kernels])
