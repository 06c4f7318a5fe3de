"""Operations of our own namespace `xla_core`, for what no aten operation stands for; nobody calls them but the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY: Any = torch.library.Library("xla_core", "DEF")


def define(schema: str, shapes: Callable[..., Any]) -> None:
    """Add `name(Tensor x, …) -> …`; `shapes` gives meta tensors like the results, for meta tensors like the arguments."""
    _LIBRARY.define(schema)
    _LIBRARY.impl(schema.partition("(")[0], shapes, "Meta")
