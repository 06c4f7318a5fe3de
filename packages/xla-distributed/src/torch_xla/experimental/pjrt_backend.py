"""As `torch_xla.distributed.xla_backend`, which also registers the old init method `pjrt://`."""

from __future__ import annotations

from torch_xla.distributed.xla_backend import ProcessGroupXla

__all__ = ["ProcessGroupXla"]
