"""Many processes, one training job: launchers, collectives, loaders and the `torch.distributed` backend of device `xla`."""

from pathlib import Path as _Path

from xla_core.abi import pass_over as _pass_over
from xla_core.abi import require as _require
from xla_distributed._version import __version__

__all__ = ["__version__"]

_require((1, 6), "xla-distributed")
_pass_over(_Path(__file__).parent)
