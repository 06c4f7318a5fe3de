"""The precision of matrix products and convolutions: one process-wide setting that their lowerings read.

The value is part of a compiled program, so whoever caches programs adds `get()` to the key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from jax import lax

# Public as `torch_xla.backends.logger`.
logger = logging.getLogger("torch_xla.backends")

_PRECISIONS: Mapping[str, lax.Precision] = {
    "default": lax.Precision.DEFAULT,
    "high": lax.Precision.HIGH,
    "highest": lax.Precision.HIGHEST,
}


class _Setting:
    """The setting's state; `highest` keeps float32 products exact to float32 on every device, as CPU torch does."""

    name = "highest"
    chosen = False


_setting = _Setting()


def get() -> str:
    """The name in force: 'default', 'high' or 'highest'."""
    return _setting.name


def set(precision: str) -> None:
    """Choose by name for everything lowered from now on; raises ValueError for a name that is not known.

    Logs a warning where another one was chosen before: what is recorded but has not run yet is computed in the new one.
    """
    if precision not in _PRECISIONS:
        raise ValueError(f"matrix product precision is {precision!r}, must be one of {', '.join(map(repr, _PRECISIONS))}")
    if _setting.chosen and precision != _setting.name:
        logger.warning(
            "The precision of matrix products changes from %r to %r, also that of products which are recorded and have not run: choose it "
            "once, or call torch_xla.sync() before",
            _setting.name,
            precision,
        )
    _setting.name, _setting.chosen = precision, True


def current() -> lax.Precision:
    """The setting as `jax.lax` takes it."""
    return _PRECISIONS[_setting.name]
