"""`xm.save`: `torch.save` of CPU tensors, on the replicas that write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import torch

import torch_xla.core.xla_model as xm
from xla_serialization.checkpoint.participants import is_writer, spans_processes
from xla_serialization.checkpoint.state import unwrapped
from xla_serialization.core import tensors as tensors_abi
from xla_serialization.format.locked_write import locked_atomic_write
from xla_serialization.torch_formats.torch_save import write_torch
from xla_serialization.torch_formats.whole_tensors import whole_tensors


def save(data: Any, file_or_path: str | os.PathLike[str] | IO[bytes], master_only: bool, global_master: bool, sync: bool) -> None:
    """As `xm.save` says, among replicas and processes; a path is replaced when all is written.

    Processes of one SPMD program must all call: whole tensors come from all of them a part at a time, and wait in an unnamed file beside
    the path, or in the system's folder for temporary files.
    """
    writing = is_writer(master_only, global_master)
    if spans_processes():
        cpu = _from_all_processes(data, writing, _folder_of(file_or_path))
    else:
        cpu = tensors_abi.to_cpu(data, convert=writing)
    if writing:
        if isinstance(file_or_path, (str, os.PathLike)):
            with locked_atomic_write(file_or_path) as path:
                write_torch(cpu, path)
        else:
            torch.save(cpu, file_or_path)
    if sync:
        xm.rendezvous("torch_xla.core.xla_model.save")


def _folder_of(target: str | os.PathLike[str] | IO[bytes]) -> Path | None:
    return Path(target).absolute().parent if isinstance(target, (str, os.PathLike)) else None


def _from_all_processes(data: Any, writing: bool, folder: Path | None) -> Any:
    """Copy the nesting, with CPU tensors if this process writes; aliases of the same data share memory."""

    def convert(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        inner = [unwrapped(tensor) for tensor in tensors]
        keys = [tensors_abi.alias_key(tensor) for tensor in inner]
        distinct = dict(zip(keys, inner, strict=True))
        on_cpu = dict(zip(distinct, whole_tensors(list(distinct.values()), writing, folder), strict=True))
        return [on_cpu[key].detach() for key in keys]

    def on_device(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.device.type == "xla"

    return xm.ToXlaTensorArena(convert, on_device).transform(data)
