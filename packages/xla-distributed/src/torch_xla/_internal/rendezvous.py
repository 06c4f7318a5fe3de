"""The init methods `xla://` and `pjrt://` of `torch.distributed`."""

from xla_distributed.process_groups.rendezvous import DummyStore
from xla_distributed.process_groups.rendezvous import rendezvous as pjrt_rendezvous_handler

__all__ = ["DummyStore", "pjrt_rendezvous_handler"]
