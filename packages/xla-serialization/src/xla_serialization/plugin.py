"""The implementations that this package offers, by the user's full names; the core asks for them once, when one is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function."""
    from xla_serialization.torch_formats import xm_save

    return {"torch_xla.core.xla_model.save": xm_save.save}
