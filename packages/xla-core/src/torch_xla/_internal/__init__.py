"""Not for users, but used by some. This package is shared: other wheels add modules below it."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
