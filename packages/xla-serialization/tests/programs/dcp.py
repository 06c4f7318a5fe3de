"""A sharded state with torch.distributed.checkpoint; reports as JSON. usage: dcp.py save|load|hf|later FOLDER ROWS COLUMNS"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.runtime as xr
import xla_serialization
from xla_core.abi.metrics import snapshot
from xla_core.abi.sharding import sharding_of

warnings.filterwarnings("ignore", message=".*torch.distributed is.*unavailable")
# Name → (shape, dtype, its sharding)
STATE: dict[str, tuple[tuple[int, ...], torch.dtype, Any]] = {
    "both": ((16, 8), torch.float32, ("x", "y")),
    "turned": ((16, 8), torch.bfloat16, ("y", "x")),
    "together": ((32, 3), torch.float32, (("x", "y"), None)),
    "columns": ((2, 8, 3), torch.int16, (None, "x", None)),
    "uneven": ((7, 6), torch.int32, ("x", None)),
    "scalar": ((), torch.float32, ()),
    "plain": ((11,), torch.float32, None),
}


def values(name: str) -> torch.Tensor:
    shape, dtype, _ = STATE[name]
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype) + len(name)


def sharded(mesh: xs.Mesh, zeros: bool) -> dict[str, Any]:
    """The state on the devices: what is to be saved, or of zeros."""
    found: dict[str, Any] = {}
    for name, (_, _, spec) in STATE.items():
        there = values(name).to("xla")
        if zeros:
            there.zero_()
        found[name] = there if spec is None else xs.mark_sharding(there, mesh, spec)
    found["plain"] = found["plain"].clone()
    here = values("plain")
    return {"nested": {"on": found}, "here": here.zero_() if zeros else here, "step": 0 if zeros else 7}


def received() -> float:
    """Bytes that came from devices."""
    found = snapshot().metrics.get("InboundData")
    return 0.0 if found is None else found.accumulator


def save(folder: str, mesh: xs.Mesh, alone: bool) -> dict[str, Any]:
    state = sharded(mesh, zeros=False)
    before = received()
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), planner=xc.SPMDSavePlanner(), no_dist=alone)
    kept = {tensor.device.type for tensor in state["nested"]["on"].values()}
    return {"received": received() - before, "kept": sorted(kept)}


def load(folder: str, mesh: xs.Mesh, alone: bool) -> dict[str, Any]:
    state = sharded(mesh, zeros=True)
    inside = state["nested"]["on"]
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder), planner=xc.SPMDLoadPlanner(), no_dist=alone)
    assert state["nested"]["on"] is inside
    still_sharded = {name: sharding_of(getattr(tensor, "global_tensor", tensor)) is not None for name, tensor in inside.items()}
    equal = {name: torch.equal(tensor.cpu(), values(name)) for name, tensor in inside.items()}
    return {"sharded": still_sharded, "equal": equal, "here": torch.equal(state["here"], values("plain")), "step": state["step"]}


def flat(mesh: xs.Mesh, zeros: bool) -> dict[str, Any]:
    return sharded(mesh, zeros)["nested"]["on"]


def hf(folder: str, mesh: xs.Mesh, alone: bool) -> dict[str, Any]:
    """Torch's safetensors, divided, consolidated and read again; then a write of whole tensors."""
    report: dict[str, Any] = {}
    floats = {name: value for name, value in flat(mesh, zeros=False).items() if value.is_floating_point() and value.dim()}
    for name, state, consolidated in (("divided", flat(mesh, zeros=False), False), ("consolidated", floats, True)):
        writer = dcp.HuggingFaceStorageWriter(f"{folder}/{name}", save_distributed=True, enable_consolidation=consolidated)
        dcp.save(state, storage_writer=writer, planner=xc.SPMDSavePlanner(), no_dist=alone)
        into = {key: tensor for key, tensor in flat(mesh, zeros=True).items() if key in state}
        dcp.load(into, storage_reader=dcp.HuggingFaceStorageReader(f"{folder}/{name}"), planner=xc.SPMDLoadPlanner(), no_dist=alone)
        ours = {key: tensor for key, tensor in flat(mesh, zeros=True).items() if key in state}
        xla_serialization.load_into(ours, f"{folder}/{name}")
        report[name] = [key for key in state for one in (into, ours) if not torch.equal(one[key].cpu(), values(key))]
    try:
        writer = dcp.HuggingFaceStorageWriter(f"{folder}/whole")
        dcp.save(floats, storage_writer=writer, planner=xc.SPMDSavePlanner(), no_dist=alone)
    except dcp.api.CheckpointException as error:
        report["refused"] = str(error)
    return report


def later(folder: str, mesh: xs.Mesh, alone: bool) -> dict[str, Any]:
    """`async_save`, beside which the state changes."""
    state = sharded(mesh, zeros=False)
    writer = dcp.FileSystemWriter(folder)
    options: dict[str, Any] = {"planner": xc.SPMDSavePlanner(), "async_stager": xla_serialization.SnapshotStager(), "no_dist": alone}
    saving = dcp.async_save(state, storage_writer=writer, **options)
    for tensor in state["nested"]["on"].values():
        tensor.zero_()
    torch_xla.sync()
    saving.result()
    return load(folder, mesh, alone)


def main() -> None:
    action, folder, rows, columns = sys.argv[1:]
    xr.use_spmd()
    mesh = xs.Mesh(range(xr.global_runtime_device_count()), (int(rows), int(columns)), ("x", "y"))
    alone = xr.process_count() == 1
    if not alone:
        dist.init_process_group("gloo")
    found = {"save": save, "load": load, "hf": hf, "later": later}[action](folder, mesh, alone)
    if not alone:
        dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
