"""Versions: the API level, and what the build was made of."""

# A folder: by a file `version.py` beside ours, an installation of PyTorch/XLA is found (`xla_core/installation.py`).

from torch_xla import __version__
from xla_core.legacy.xlac.switches import _get_git_revs

__xla_gitrev__ = _get_git_revs()["xla"]
__torch_gitrev__ = _get_git_revs()["torch"]

__all__ = ["__torch_gitrev__", "__version__", "__xla_gitrev__"]
