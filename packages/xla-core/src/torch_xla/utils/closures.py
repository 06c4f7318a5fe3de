"""Runners of step closures (alias `xc`)."""

from xla_core.api.closures import AsyncClosureHandler, ClosureHandler

__all__ = ["AsyncClosureHandler", "ClosureHandler"]
