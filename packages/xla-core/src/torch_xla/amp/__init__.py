"""Mixed precision: `autocast`, `GradScaler` and the sync-free optimizers."""

from torch_xla.amp import syncfree
from xla_core.features.amp.autocast import autocast
from xla_core.features.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "syncfree"]
