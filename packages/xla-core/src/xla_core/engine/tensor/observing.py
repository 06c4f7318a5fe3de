"""What may watch the recording of operations, put around whatever records them; normally nothing."""

from __future__ import annotations

from collections.abc import Callable

from xla_core.engine.tensor.schema import Handler

_wrapper: Callable[[Handler], Handler] | None = None


def set_wrapper(wrapper: Callable[[Handler], Handler] | None) -> None:
    """Let `wrapped` give `wrapper(handler)` from now on; None: the handler itself again."""
    global _wrapper
    _wrapper = wrapper


def wrapped(handler: Handler) -> Handler:
    """The handler to call in the place of `handler`. What records no overload of torch asks for it at each call."""
    return handler if _wrapper is None else _wrapper(handler)
