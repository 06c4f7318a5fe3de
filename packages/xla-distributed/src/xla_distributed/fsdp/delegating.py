"""Wrappers that have the attributes and items of the module inside."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn


class Delegating(nn.Module):
    """A module that wraps another one and has its attributes and items, too. _inside: the attribute that holds the wrapped module."""

    _inside: ClassVar[str]

    def __getattr__(self, name: str) -> Any:
        """The wrapped module's attribute, if this has none."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == self._inside:  # not there yet
                raise
            return getattr(super().__getattr__(self._inside), name)

    def __getitem__(self, key: Any) -> Any:
        """The wrapped module's item, if it has items."""
        return super().__getattr__(self._inside)[key]  # type: ignore[index]
