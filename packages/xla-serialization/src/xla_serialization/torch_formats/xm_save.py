"""`xm.save`: `torch.save` of CPU tensors, on the replicas that write."""

from __future__ import annotations

import os
from typing import IO, Any

import torch

import torch_xla.core.xla_model as xm
from xla_serialization.checkpoint.participants import is_writer
from xla_serialization.core import tensors as tensors_abi
from xla_serialization.format.locked_write import locked_atomic_write
from xla_serialization.torch_formats.torch_save import write_torch


def save(
    data: Any, file_or_path: str | os.PathLike[str] | IO[bytes], master_only: bool = True, global_master: bool = False, sync: bool = False
) -> None:
    """`torch.save` of the nesting with CPU tensors in place of the XLA tensors, to a path or a file object.

    master_only: each host's master writes (global_master: the job's only); other replicas compute the tensors and write nothing. Otherwise
    every replica writes, each to its own target. A path is replaced when all is written. sync: then wait for all replicas; all must call.
    """
    writing = is_writer(master_only, global_master)
    cpu = tensors_abi.to_cpu(data, convert=writing)
    if writing:
        if isinstance(file_or_path, (str, os.PathLike)):
            with locked_atomic_write(file_or_path) as path:
                write_torch(cpu, path)
        else:
            torch.save(cpu, file_or_path)
    if sync:
        xm.rendezvous("torch_xla.core.xla_model.save")
