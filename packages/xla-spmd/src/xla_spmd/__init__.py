"""One program over many devices: meshes, partition specs and the shardings they stand for."""

from pathlib import Path as _Path

from xla_core import abi as _abi
from xla_spmd._version import __version__

__all__ = ["__version__"]

_abi.require((2, 6), "xla-spmd")
_abi.events.exclude_frames(_Path(__file__).parent)
