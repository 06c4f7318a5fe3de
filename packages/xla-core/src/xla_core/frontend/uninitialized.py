"""Parameters without a shape yet (`nn.LazyLinear` and its kin) that were moved to a device before their first forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from xla_core._compat import DISABLED_TORCH_FUNCTION
from xla_core.frontend.tensor import XLATensor


class _Uninitialized(XLATensor):
    """What parameters and buffers share; `materialize(shape)`, torch's own, turns one into an ordinary tensor on its device."""

    __slots__ = ()
    cls_to_become = XLATensor
    __torch_function__ = DISABLED_TORCH_FUNCTION
    origin: type

    def detach(self) -> torch.Tensor:
        """Another one: what `nn.Parameter` makes of a tensor that is moved."""
        return become(torch.empty(0, dtype=self.dtype, device=self.device), self.origin)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        fresh: Any = self.detach().requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            fresh._is_param = True
        memo[id(self)] = fresh
        return fresh

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Saved as one on the CPU: there is nothing to say but that it is uninitialized."""
        return self.origin, (self.requires_grad,)


class UninitializedXLAParameter(_Uninitialized, UninitializedParameter):
    """A parameter; lazy modules and torch insist on the class."""

    __slots__ = ()
    origin = UninitializedParameter


class UninitializedXLABuffer(_Uninitialized, UninitializedBuffer):
    """A buffer, likewise."""

    __slots__ = ()
    origin = UninitializedBuffer


def become(tensor: Any, origin: type) -> torch.Tensor:
    """`tensor`, an empty xla tensor, as one that waits for its shape; origin: the uninitialized class that it comes from."""
    tensor.__class__ = UninitializedXLABuffer if issubclass(origin, UninitializedBuffer) else UninitializedXLAParameter
    return tensor  # type: ignore[no-any-return]


UNINITIALIZED = (UninitializedParameter, UninitializedBuffer)
