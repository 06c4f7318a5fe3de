"""Autograd functions over nested arguments."""

from __future__ import annotations

from xla_core.legacy.pytreeify import pytreeify

__all__ = [
    "pytreeify",
]
