"""The precision of matrix products and convolutions in float32: one process-wide setting, with a default for each platform.

Lowerings give their products none: what traces a program does so within `within(platform)`. The value is part of a compiled program, so
whoever caches programs adds `chosen()` to the key.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager

import jax

# Public as `torch_xla.backends.logger`.
logger = logging.getLogger("torch_xla.backends")

_PRECISIONS = ("default", "high", "highest")
# A TPU's units multiply in bfloat16; `highest` takes six passes. Elsewhere products are exact to float32, as CPU torch's are.
_DEFAULTS = {"tpu": "default"}


class _Setting:
    """The setting's state: a name of `_PRECISIONS`; None as long as nobody chose."""

    name: str | None = None


_setting = _Setting()


def chosen() -> str | None:
    """The name that was chosen; None: each platform has its default."""
    return _setting.name


def of(platform: str) -> str:
    """The name in force for programs of a platform: 'default', 'high' or 'highest'."""
    return _setting.name or _DEFAULTS.get(platform, "highest")


def within(platform: str) -> AbstractContextManager[None]:
    """A context in which jax traces products without a precision of their own in the one in force for a platform."""
    scope: AbstractContextManager[None] = jax.default_matmul_precision(of(platform))
    return scope


def choose(precision: str | None) -> None:
    """Choose by name for everything lowered from now on (None: the platform's); raises ValueError for a name that is not known.

    Logs a warning where another one was chosen before: what is recorded but has not run yet is computed in the new one.
    """
    if precision not in (*_PRECISIONS, None):
        raise ValueError(f"matrix product precision is {precision!r}, must be one of {', '.join(map(repr, _PRECISIONS))}")
    if _setting.name is not None and precision != _setting.name:
        logger.warning(
            "The precision of matrix products changes from %r to %r, also that of products which are recorded and have not run: choose it "
            "once, or call torch_xla.sync() before",
            _setting.name,
            precision,
        )
    _setting.name = precision
