"""DLPack of xla tensors: other libraries get the device buffer, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

from xla_core.base import private_torch
from xla_core.engine.tensor.interop import buffer_of
from xla_core.engine.tensor.plain import tensor_behind


def _exported(tensor: torch.Tensor) -> Any:
    """The buffer of what `tensor` shows now, for another library. Raises BufferError where torch does."""
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    return buffer_of(tensor)


def _on_buffers(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make torch's method of this name call the device buffer's method, for an xla tensor."""

    def make(own: Callable[..., Any]) -> Callable[..., Any]:
        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor_behind(tensor) is None:
                return own(tensor, *args, **kwargs)
            return getattr(_exported(tensor), name)(*args, **kwargs)

        method.__name__, method.__doc__ = name, own.__doc__
        return method

    return make


def _to_dlpack(own: Callable[..., Any]) -> Callable[..., Any]:
    def to_dlpack(tensor: torch.Tensor) -> Any:
        return own(tensor) if tensor_behind(tensor) is None else _exported(tensor).__dlpack__()

    to_dlpack.__doc__ = own.__doc__
    return to_dlpack


def register() -> None:
    """Let `jnp.from_dlpack`, `np.from_dlpack` and their kin take xla tensors."""
    private_torch.replace_in_torch(
        {
            (torch.Tensor, "__dlpack__"): _on_buffers("__dlpack__"),
            (torch.Tensor, "__dlpack_device__"): _on_buffers("__dlpack_device__"),
            (torch, "to_dlpack"): _to_dlpack,
            (torch.utils.dlpack, "to_dlpack"): _to_dlpack,
        }
    )
