"""Differentiable collectives (alias `xf`), which xla-distributed implements; one replica needs no other package."""

from __future__ import annotations

from functools import partial as _partial

from xla_core.api.lookup import attribute as _attribute
from xla_core.api.lookup import names_of as _names_of

__all__ = [*_names_of(__name__)]  # found by `__getattr__`


__getattr__ = _partial(_attribute, __name__)
