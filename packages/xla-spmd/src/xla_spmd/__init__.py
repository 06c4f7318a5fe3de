"""One program over many devices: meshes, partition specs and the shardings they stand for."""

from pathlib import Path as _Path

from xla_core import abi as _abi
from xla_spmd import dtensor_support as _dtensor_support
from xla_spmd._version import __version__

__all__ = ["__version__"]

_abi.require((4, 0), "xla-spmd")
_abi.events.exclude_frames(_Path(__file__).parent)


def _load_dtensors() -> _dtensor_support.DTensorSupport:
    from xla_spmd import dtensors

    return dtensors


_dtensor_support.load_by(_load_dtensors)
