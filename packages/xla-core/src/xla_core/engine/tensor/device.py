"""Device `xla` in torch: the renamed backend key, and kernels for calls that carry no xla tensor."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend

from xla_core.base import private_torch
from xla_core.base.errors import DeviceMismatchError, UnsupportedOperationError
from xla_core.base.private_torch import OpOverload
from xla_core.engine.runtime import client
from xla_core.engine.tensor import accelerator, dispatch, generator, host_indices, not_dense, pinned, storage, streams
from xla_core.engine.tensor.device_module import DeviceModule
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.schema import is_factory
from xla_core.engine.tensor.tensor import XLATensor
from xla_core.ops.facts import TorchKernel
from xla_core.ops.table import TABLE, UNLOWERED, kernel_of, overload_named

_libraries: list[torch.library.Library] = []


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Serve calls that reach the backend key itself: factories, and calls for which torch excludes subclass dispatch."""
    try:
        handler = func._xla_handler
    except AttributeError:
        handler = dispatch.handler_for(func)
    try:
        return handler(args, kwargs)
    except BaseException as error:  # as in XLATensor.__torch_dispatch__
        client.mend()
        other = host_indices.other_arguments(func, args, kwargs, error)
        if other is None:
            raise
    return _fallback(func, *other[0], **other[1])


def direct(func: OpOverload) -> Any:
    """A kernel for the backend key that serves `func` as subclass dispatch would."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _fallback(func, *args, **kwargs)

    return kernel


# What torch's other views are made of, and what gives a tensor another's storage: on the CPU they change nothing but metadata.
_METADATA = (
    "_reshape_alias",
    "as_strided",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
    "unfold",
    "view",
    "view_as_complex",
    "view_as_real",
)
_PREFERRED = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")  # torch prefers kernels of these keys to a fallback


def _or_torch(name: str, key: str) -> Any:
    """`direct` for the overload of this name, looked up at its first call, or torch's own kernel of `key`.

    That one serves tensors without data of ours: wrappers that a library has made for this device, while it turns their dispatch off.
    """

    def kernel(*args: Any, **kwargs: Any) -> Any:
        func = overload_named(name)
        try:
            return _fallback(func, *args, **kwargs)
        except (DeviceMismatchError, UnsupportedOperationError):
            if not (args and isinstance(args[0], torch.Tensor) and args[0].device.type == "xla" and tensor_behind(args[0]) is None):
                raise
            return private_torch.call_kernel(func, key, args, kwargs)

    private_torch.never_trace(kernel.__code__)
    return kernel


@cache
def serve_plain_tensors() -> None:
    """Give operations a kernel for the backend key where torch, for a plain tensor, would run its own kernel on host memory."""
    kernels: Any = torch.library.Library("aten", "IMPL")
    for name in private_torch.operation_names():
        if not name.startswith("aten::") or kernel_of(name) is TorchKernel.KEPT or private_torch.has_kernel(name, "PrivateUse1"):
            continue
        key = next((key for key in _PREFERRED if private_torch.has_kernel(name, key)), None)
        if key is not None:
            kernels.impl(name.removeprefix("aten::"), _or_torch(name, key), "PrivateUse1")
    _libraries.append(kernels)


def _is_ours(output: Any) -> bool:
    """Whether a backward pass from `output` runs on xla; also for tensors that function transforms wrap."""
    return isinstance(output, torch.Tensor) and output.device.type == "xla"


def _to_xla(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **options: Any) -> torch.Tensor:
    """`tensor.to("xla")`; device: another one than this thread's default, or its index."""
    where = client.recorder_of(device).device
    return tensor.to(device=where, non_blocking=non_blocking, **options)


def register() -> None:
    """Add device `xla` to torch. Starts no client."""
    module = DeviceModule("torch.xla")
    private_torch.register_device("xla", module)
    torch.Tensor.xla = _to_xla  # type: ignore[attr-defined]
    generate_methods_for_privateuse1_backend(for_tensor=False, for_packed_sequence=True, for_storage=True)
    private_torch.trace_as_plain(XLATensor)
    accelerator.register(module)
    generator.register()
    not_dense.register()
    pinned.register()
    storage.register()
    streams.register()
    client.when_default_moves(lambda: private_torch.redirect_moves(lambda: torch.device("xla", client.current_index())))
    private_torch.guard_engine(_is_ours, client.check_thread)
    boxed = torch.library.Library("_", "IMPL")
    boxed.fallback(_fallback, "PrivateUse1")
    kernels = torch.library.Library("aten", "IMPL")
    replaced = [name for name, declared in UNLOWERED.items() if declared.kernel is TorchKernel.REPLACED]
    for name in (*replaced, *(name for name in TABLE if is_factory(overload_named(name)))):
        kernels.impl(name.removeprefix("aten::"), direct(overload_named(name)), "PrivateUse1")
    for name in _METADATA:
        kernels.impl(name, _or_torch(f"aten::{name}", "CPU"), "PrivateUse1")
    _libraries.extend([boxed, kernels])
