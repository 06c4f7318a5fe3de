"""Differentiable collectives (alias `xf`), which xla-distributed implements; one replica needs no other package."""

from __future__ import annotations

from typing import Any

from xla_core.api.lookup import attribute as _attribute
from xla_core.api.lookup import names_of as _names_of

__all__ = [*_names_of(__name__)]  # found by `__getattr__`


def __getattr__(name: str) -> Any:
    return _attribute(__name__, name)
