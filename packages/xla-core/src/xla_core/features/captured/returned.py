"""Descriptions of a captured call's results, in addition to those of `engine/tracing/origins.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Existing:
    """An existing tensor that the call returns: argument `index`, or `tensor` if `index` is None. identity: the tensor's id."""

    index: int | None
    identity: int = 0
    tensor: Any = field(default=None, compare=False)
