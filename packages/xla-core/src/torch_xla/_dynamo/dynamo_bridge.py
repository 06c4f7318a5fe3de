"""The names of `torch_xla.core.dynamo_bridge`, where PyTorch/XLA has them too."""

from torch_xla.core.dynamo_bridge import *  # noqa: F403
from torch_xla.core.dynamo_bridge import __all__ as __all__
