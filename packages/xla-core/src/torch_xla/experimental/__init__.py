"""Names that may still change. This package is shared: other wheels add modules below it."""

import pkgutil

from xla_core.api.background_compile import background_compile
from xla_core.api.eager import eager_mode, eager_mode_context, is_eager_mode
from xla_core.api.step import experimental_compile as compile

__path__ = pkgutil.extend_path(__path__, __name__)
__all__ = ["background_compile", "compile", "eager_mode", "eager_mode_context", "is_eager_mode"]
