"""Results in the memory format of an operand where torch's CPU kernel gives it, and its meta kernel does not say so."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from xla_core.base.private_torch import suggested_memory_format


def like_input(overload: str) -> Callable[..., Any]:
    """The `shapes` of an aten operator (`"reflection_pad2d.default"`) whose results have the memory format of its first operand."""
    infer = attrgetter(overload)(torch.ops.aten)

    def shapes(x: torch.Tensor, *args: Any) -> Any:
        memory_format = suggested_memory_format(x)

        def formatted(result: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(result, memory_format=memory_format) if result.dim() == x.dim() else result

        results = infer(x, *args)
        return formatted(results) if isinstance(results, torch.Tensor) else tuple(map(formatted, results))

    return shapes
