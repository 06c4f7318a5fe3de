"""`xm.save`: by xla-serialization where it is installed, by `torch.save` for one replica without it."""

from __future__ import annotations

import os
from typing import IO, Any

import torch

from xla_core.api import plugins
from xla_core.api.collectives import is_alone
from xla_core.api.conversion import maybe_convert_to_cpu
from xla_core.api.rendezvous import rendezvous
from xla_core.api.user_modules import xm
from xla_core.base.budgets import budget
from xla_core.base.installation import SERIALIZATION


@budget(compiles=None, reads=None)
def save(
    data: Any, file_or_path: str | os.PathLike[str] | IO[bytes], master_only: bool = True, global_master: bool = False, sync: bool = False
) -> None:
    """`torch.save` of the nesting with CPU tensors in place of the XLA tensors, to a path or a file object.

    master_only: each host's master writes (global_master: the job's only); other replicas compute the tensors and write nothing. Otherwise
    every replica writes, each to its own target. sync: then wait for all replicas; all must call. With xla-serialization, which several
    replicas and processes need, a path is replaced when all is written.
    """
    writer = plugins.checkpoints()
    if writer is not None:
        writer.save(data, file_or_path, master_only, global_master, sync)
        return
    if not is_alone():
        raise plugins.missing("torch_xla.core.xla_model.save", SERIALIZATION)
    torch.save(maybe_convert_to_cpu(data), file_or_path)
    if sync:
        xm(rendezvous)("torch_xla.core.xla_model.save")
