"""Eager mode, by the name of the module that holds it."""

from xla_core.api.eager import eager_mode, eager_mode_context, is_eager_mode
from xla_core.api.step import experimental_compile as compile

__all__ = ["compile", "eager_mode", "eager_mode_context", "is_eager_mode"]
