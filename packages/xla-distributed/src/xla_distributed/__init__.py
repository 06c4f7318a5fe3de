"""Many processes, one training job: launchers, collectives, loaders and the `torch.distributed` backend of device `xla`."""

from pathlib import Path as _Path

from xla_core import abi as _abi
from xla_distributed._version import __version__

__all__ = ["__version__"]

_abi.require((4, 1), "xla-distributed")
_abi.events.exclude_frames(_Path(__file__).parent)
