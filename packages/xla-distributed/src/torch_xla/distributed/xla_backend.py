"""Importing this registers the backend `xla` and the init method `xla://` with `torch.distributed`."""

from __future__ import annotations

from xla_distributed import functional_collectives as _functional_collectives
from xla_distributed.process_group import ProcessGroupXla

__all__ = ["ProcessGroupXla"]

del _functional_collectives  # importing it is enough: it gives torch kernels
