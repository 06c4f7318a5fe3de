"""Memory that malloc keeps for the next tensor of a size that has been there, given back to the system."""

from __future__ import annotations

import ctypes

_KEEP_NOTHING = 0


def give_back() -> None:
    """Let the system have what malloc keeps: tensors of less than 32 MB, which others follow. Nothing without malloc_trim."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(_KEEP_NOTHING)
