"""Runners of step closures (alias `xc`)."""

from __future__ import annotations

from xla_core.api.closures import AsyncClosureHandler, ClosureHandler

__all__ = [
    "AsyncClosureHandler",
    "ClosureHandler",
]
