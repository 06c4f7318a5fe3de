"""The wrapper that watches the recording of operations, put around every handler that records; normally none."""

from __future__ import annotations

from collections.abc import Callable

from xla_core.engine.tensor.schema import Handler

_wrapper: Callable[[Handler], Handler] | None = None


def set_wrapper(wrapper: Callable[[Handler], Handler] | None) -> None:
    """Let `wrapped` return `wrapper(handler)` from now on; None: the handler itself again."""
    global _wrapper
    _wrapper = wrapper


def wrapped(handler: Handler) -> Handler:
    """The handler to call in the place of `handler`. Code that records something else than a torch overload asks at each call."""
    return handler if _wrapper is None else _wrapper(handler)
