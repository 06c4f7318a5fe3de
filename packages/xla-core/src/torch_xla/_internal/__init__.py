"""Not for users, but used by some. This package is shared: other wheels add modules below it."""

from __future__ import annotations

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
