"""Backend `xla` and init method `xla://` of `torch.distributed`; importing it gives torch the functional collectives."""

from __future__ import annotations

from xla_distributed.process_groups import functional_collectives as _functional_collectives
from xla_distributed.process_groups.creation import create, new_xla_process_group
from xla_distributed.process_groups.process_group import ProcessGroupXla
from xla_distributed.process_groups.rendezvous import rendezvous

__all__ = ["ProcessGroupXla", "create", "new_xla_process_group", "rendezvous"]

del _functional_collectives  # importing it is enough: it gives torch kernels
