"""Exchange buffers without a copy, by DLPack. Exported and imported buffers are never donated."""

from __future__ import annotations

from typing import Any

import jax
import torch

from xla_core.base.dtypes import torch_dtype
from xla_core.engine.runtime import client
from xla_core.engine.runtime.transfer import put
from xla_core.engine.tensor.interop import buffer_of, tensor_from_buffer
from xla_core.engine.tensor.plain import unwrapped


def to_dlpack(tensor: torch.Tensor) -> Any:
    """A DLPack capsule over the device buffer of the tensor's present value; later writes to the tensor do not change it.

    Raises TypeError for a tensor that is not on an xla device.
    """
    if tensor.device.type != "xla":
        raise TypeError(f"to_dlpack takes an xla tensor, got one on {tensor.device}; use torch.utils.dlpack for it")
    return buffer_of(unwrapped(tensor)).__dlpack__()


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """An xla tensor over an object that exports DLPack (a torch tensor, an array) or over a DLPack capsule of CPU memory.

    Data on devices other than the xla devices is copied. Other memory is shared if its alignment allows: its owner must not write to it.
    """
    with jax.enable_x64(True):
        source = ext_tensor if hasattr(ext_tensor, "__dlpack__") else torch.utils.dlpack.from_dlpack(ext_tensor)
        if isinstance(source, torch.Tensor):
            source = source.detach().contiguous()
        array = source if isinstance(source, jax.Array) else jax.dlpack.from_dlpack(source)
    if array.devices() - set(client.client().devices):
        array = put(array, client.current_recorder())
    return tensor_from_buffer(array, torch_dtype(array.dtype))
