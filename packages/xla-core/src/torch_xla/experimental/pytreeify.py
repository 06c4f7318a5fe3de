"""Autograd functions over nested arguments."""

from xla_core.legacy.pytreeify import pytreeify

__all__ = ["pytreeify"]
