"""One program over many devices: meshes, partition specs and the shardings they stand for."""

from pathlib import Path as _Path

from xla_core.abi import pass_over as _pass_over
from xla_core.abi import require as _require
from xla_spmd._version import __version__

__all__ = ["__version__"]

_require((1, 7), "xla-spmd")
_pass_over(_Path(__file__).parent)
