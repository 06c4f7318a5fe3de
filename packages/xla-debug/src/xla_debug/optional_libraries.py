"""Libraries that parts of this package need, and that its wheel does not require."""

from __future__ import annotations

import importlib.util

OPENTELEMETRY, TENSORBOARD = "opentelemetry.sdk", "tensorboard"
_EXTRAS = {OPENTELEMETRY: "opentelemetry", TENSORBOARD: "tensorboard"}


def is_installed(module: str) -> bool:
    """Whether a module can be found; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def require(module: str, use: str) -> None:
    """Raise ImportError, with the extra to install, if a library is missing. use: begins the message, and names what needs it."""
    if not is_installed(module):
        raise ImportError(f'{use} needs a package that is not installed: pip install "xla-debug[{_EXTRAS[module]}]"')
