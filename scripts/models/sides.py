"""ReLUs that take the sides of their corners from another run.

An input of a ReLU that is nearer to zero than the rounding of the layers before it may fall on either side of the corner,
where the derivative jumps. One such element of a small image moves gradients by percents, on any two devices, and says nothing
about the other operations. With the sides of one run in the other, the two can be compared.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def _relu(x: Tensor, inplace: bool = False) -> tuple[Tensor, float, float]:
    return x, 0.0, math.inf


def _relu6(x: Tensor, inplace: bool = False) -> tuple[Tensor, float, float]:
    return x, 0.0, 6.0


def _hardtanh(x: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> tuple[Tensor, float, float]:
    return x, min_val, max_val


_CORNERS: dict[Any, Callable[..., tuple[Tensor, float, float]]] = {
    functional.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    functional.relu6: _relu6,
    functional.hardtanh: _hardtanh,
}
"""The input of a function that is flat below one number and above another."""


class Sides(TorchFunctionMode):
    """Records on which side of its corners each element lies; the next time it is entered, gives the elements those sides, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: deque[tuple[Tensor, Tensor]] = deque()
        self._replaying = False

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._replaying = not self._replaying

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        corners = _CORNERS.get(func)
        if corners is None:
            return func(*args, **(kwargs or {}))
        x, low, high = corners(*args, **(kwargs or {}))
        if self._replaying:
            below, above = (side.to(x.device) for side in self._recorded.popleft())
        else:
            below, above = x.detach() <= low, x.detach() >= high
            self._recorded.append((below, above))
        return x.masked_fill(below, low).masked_fill(above, high)
