"""See why a program on XLA devices is slow. Importing this package is cheap: modules that need torch are imported at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xla_debug._version import __version__

if TYPE_CHECKING:
    from xla_debug.compile_limit import TooManyCompilesError, assert_max_compiles

__all__ = ["TooManyCompilesError", "__version__", "assert_max_compiles"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xla_debug import compile_limit

    return getattr(compile_limit, name)
