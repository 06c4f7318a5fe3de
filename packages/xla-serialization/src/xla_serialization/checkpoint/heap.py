"""Give memory back to the system that malloc keeps for later allocations."""

from __future__ import annotations

import ctypes

_KEEP_NOTHING = 0


def give_back() -> None:
    """Give freed memory that malloc keeps (of tensors below 32 MB) back to the system. Does nothing where there is no malloc_trim."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(_KEEP_NOTHING)
