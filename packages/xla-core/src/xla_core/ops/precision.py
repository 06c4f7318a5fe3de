"""The precision of matrix products and convolutions: one process-wide setting that their lowerings read.

The value is part of a compiled program, so whoever caches programs adds `get()` to the key.
"""

from __future__ import annotations

from collections.abc import Mapping

from jax import lax

_PRECISIONS: Mapping[str, lax.Precision] = {
    "default": lax.Precision.DEFAULT,
    "high": lax.Precision.HIGH,
    "highest": lax.Precision.HIGHEST,
}


class _Setting:
    """The setting's state; `highest` keeps float32 products exact to float32 on every device, as CPU torch does."""

    name = "highest"


_setting = _Setting()


def get() -> str:
    """The name in force: 'default', 'high' or 'highest'."""
    return _setting.name


def set(name: str) -> None:
    """Choose by name for everything lowered from now on; raises ValueError for a name that is not known."""
    if name not in _PRECISIONS:
        raise ValueError(f"matrix product precision is {name!r}, must be one of {', '.join(map(repr, _PRECISIONS))}")
    _setting.name = name


def current() -> lax.Precision:
    """The setting as `jax.lax` takes it."""
    return _PRECISIONS[_setting.name]
