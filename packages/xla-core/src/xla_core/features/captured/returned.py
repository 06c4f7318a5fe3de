"""What a captured call returns, beside what `engine/tracing/origins.py` has for all that is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Existing:
    """An existing tensor returned as it is: argument `index`, or, if that is None, `tensor`, which has this `identity`."""

    index: int | None
    identity: int = 0
    tensor: Any = field(default=None, compare=False)
