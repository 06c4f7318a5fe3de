"""`Tensor.pin_memory()` on the host. torch asks its accelerator, which is now ours: it gives ordinary memory marked as pinned.

Transfers to xla devices need no pinned memory. Where torch has another accelerator that does, memory is still pinned for that one.
"""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base.private_torch import OpOverload, call_kernel, pins_for_others

_is_pinned = torch.ops.aten.is_pinned.default
_pin = torch.ops.aten._pin_memory.default
_library = torch.library.Library("aten", "IMPL")


def _by_torch(func: OpOverload, tensor: torch.Tensor, device: Any) -> Any:
    return call_kernel(func, "CompositeExplicitAutograd", (tensor, device), {})


def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
    """Whether the memory of a CPU tensor is pinned."""
    other = pins_for_others(device)
    if other is not None and _by_torch(_is_pinned, tensor, other):
        return True
    return getattr(tensor.untyped_storage(), "_pinned", False)


def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    """A copy of a CPU tensor in pinned memory."""
    other = pins_for_others(device)
    if other is not None:
        return _by_torch(_pin, tensor, other)  # type: ignore[no-any-return]
    copy = tensor.clone()
    copy.untyped_storage()._pinned = True  # type: ignore[attr-defined]
    return copy


def register() -> None:
    """Register these for tensors on the CPU."""
    _library.impl("is_pinned", is_pinned, "CPU")
    _library.impl("_pin_memory", pin_memory, "CPU")
