"""Old names that keep working and say so once."""

from xla_core.base.deprecation import deprecated, mark_deprecated, register_deprecated

__all__ = ["deprecated", "mark_deprecated", "register_deprecated"]
