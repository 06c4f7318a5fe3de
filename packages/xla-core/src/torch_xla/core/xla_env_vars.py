"""Names of environment variables (alias `xenv`)."""

from xla_core.base.env_vars import *  # noqa: F403

__all__ = [name for name in dir() if not name.startswith("__")]
