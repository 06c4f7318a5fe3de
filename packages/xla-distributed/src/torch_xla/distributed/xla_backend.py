"""Backend `xla` and init method `xla://` of `torch.distributed`; importing it adapts what torch builds on process groups."""

from xla_distributed.process_groups import data_parallel as _data_parallel
from xla_distributed.process_groups import dtensor as _dtensor
from xla_distributed.process_groups import functional_collectives as _functional_collectives
from xla_distributed.process_groups.creation import create, new_xla_process_group
from xla_distributed.process_groups.process_group import ProcessGroupXla
from xla_distributed.process_groups.rendezvous import rendezvous

__all__ = ["ProcessGroupXla", "create", "new_xla_process_group", "rendezvous"]

del _data_parallel, _dtensor, _functional_collectives  # importing them is enough
