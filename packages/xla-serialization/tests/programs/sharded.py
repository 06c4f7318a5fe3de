"""Saves or loads a state that is sharded over a mesh; reports as JSON. usage: sharded.py save|fail|load CHECKPOINT ROWS COLUMNS REPORT"""

from __future__ import annotations

import json
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
import xla_serialization
from xla_core.abi.sharding import device_shards, sharding_of
from xla_serialization.checkpoint.in_place import fill

warnings.simplefilter("error")
# Name → (shape, dtype, its sharding): over both axes, over one, not at all; unevenly; pending; a view's base is of the second.
STATE = {
    "both": ((64, 32), torch.float32, ("x", "y")),
    "turned": ((64, 32), torch.bfloat16, ("y", "x")),
    "together": ((128, 3), torch.float32, (("x", "y"), None)),
    "rows": ((16, 8, 2), torch.complex64, ("x", None, None)),
    "whole": ((5, 7), torch.float64, (None, None)),
    "uneven": ((7, 6), torch.int32, ("x", None)),
    "empty": ((0, 4), torch.float32, (None, None)),
    "plain": ((11,), torch.float32, None),
}


def values(name: str) -> torch.Tensor:
    """What is saved under a name: no two elements of it alike, as far as the dtype can tell."""
    shape, dtype, _ = STATE[name]
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype) + len(name)


def placed(name: str, tensor: torch.Tensor, mesh: xs.Mesh) -> torch.Tensor:
    """On the devices, lying as it should."""
    there = tensor.to("xla")
    spec = STATE[name][2]
    if spec is not None:
        xs.mark_sharding(there, mesh, spec)
    return there


def save(path: str, mesh: xs.Mesh) -> dict[str, object]:
    state = {name: placed(name, values(name), mesh) for name in STATE}
    pending = {"twice": state["both"] * 2}
    xla_serialization.save({"state": state, "pending": pending, "step": 7, "here": torch.ones(2)}, path)
    manifest = xla_serialization.Checkpoint(path).manifest
    held = sum(part.data.nbytes for tensor in state.values() for part in device_shards(tensor))
    once = sum(entry.nbytes for name, entry in manifest.tensors.items() if name.startswith("state."))
    return {"files": len(manifest.files), "once": once, "held": held}


def said_by(save: Callable[[], None]) -> list[str]:
    try:
        save()
    except (OSError, xla_serialization.CheckpointError) as error:
        return [type(error).__name__, str(error)]
    return []


def fail(path: str, mesh: xs.Mesh) -> dict[str, object]:
    """The second process has what cannot be saved; then it cannot write more than a few bytes to a file."""
    second = xr.process_index() == 1
    refused = said_by(lambda: xla_serialization.save({"other": object() if second else 1}, path))
    if second:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
    state = {name: placed(name, values(name), mesh) for name in STATE}
    said = said_by(lambda: xla_serialization.save({"state": state}, path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return {"refused": refused, "said": said, "step": xla_serialization.load(path)["step"]}


def load(path: str, mesh: xs.Mesh) -> dict[str, object]:
    state = {name: placed(name, torch.zeros_like(values(name)), mesh) for name in STATE}
    shardings = {name: repr(sharding_of(tensor)) for name, tensor in state.items()}
    checkpoint = xla_serialization.Checkpoint(path)
    for name, tensor in state.items():
        fill(tensor, checkpoint, f"state.{name}")
    restored = xla_serialization.load_into(
        {"state": state, "pending": {"twice": torch.zeros(64, 32)}, "step": 0, "here": torch.ones(2)}, path
    )
    wrong = [name for name, tensor in state.items() if not torch.equal(tensor.cpu(), values(name))]
    if not torch.equal(restored["pending"]["twice"], values("both") * 2):
        wrong.append("twice")
    moved = [name for name, tensor in state.items() if repr(sharding_of(tensor)) != shardings[name]]
    needed = sum(part.data.nbytes for tensor in state.values() for part in device_shards(tensor))
    return {"wrong": wrong, "moved": moved, "read": checkpoint.bytes_read, "needed": needed, "step": restored["step"]}


if __name__ == "__main__":
    action, path, rows, columns, report = sys.argv[1:]
    xr.use_spmd()
    mesh = xs.Mesh(range(int(rows) * int(columns)), (int(rows), int(columns)), ("x", "y"))
    found = {"save": save, "fail": fail, "load": load}[action](path, mesh)
    Path(f"{report}.{xr.process_index()}").write_text(json.dumps(found), encoding="utf-8")
