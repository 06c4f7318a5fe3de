"""Two processes of one SPMD program save their steps together. usage: together.py preempt|steps|fail|refuse|replicas|whole|forever FOLDER

The last line of each is a report as JSON.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_backend
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.runtime as xr
import torch_xla.utils.serialization as xser
import xla_serialization
from xla_serialization import Checkpoint, PerProcess
from xla_serialization.torch_formats import whole_tensors
from xla_serialization.training import preemption


def sharded(value: float = 0.0) -> torch.Tensor:
    """A tensor that is sharded over the devices of both processes."""
    count = xr.global_runtime_device_count()
    tensor = torch.full((8, 4), value, device="xla")
    xs.mark_sharding(tensor, xs.Mesh(range(count), (count,), ("x",)), ("x", None))
    return tensor


def error_of(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error), type(error.__cause__).__name__]
    return []


def preempt(folder: str) -> dict[str, Any]:
    manager = xc.CheckpointManager(folder, save_interval=1000)
    weight = sharded()
    saved = []
    for step in range(1, 50):
        if step == 3:
            print("ready", flush=True)
            sys.stdin.readline()
        weight += 1
        torch_xla.sync()
        if manager.save_async(step, {"weight": weight}, force=step == 1):
            saved.append(step)
        if manager.reached_preemption(step):
            break
    manager.join()
    return {"saved": saved, "signalled": preemption.received(), "all": manager.all_steps()}


def steps(folder: str) -> dict[str, Any]:
    """Saves beside training that uses the devices of both processes."""
    manager = xc.CheckpointManager(folder, save_interval=2, max_to_keep=2, max_pending_async=2, num_of_threads=2)
    weight, moved = sharded(), sharded(1.0)
    for step in range(9):
        weight += moved.sum() / 32
        manager.save_async(step, {"weight": weight, "step": step, "here": torch.full((2,), float(step))})
        torch_xla.sync()
    manager.join()
    found: dict[str, Any] = {"weight": sharded(), "step": -1, "here": torch.zeros(2)}
    manager.restore(8, found)
    pieces = Checkpoint(Path(folder) / "8").manifest.tensors["weight"].pieces
    return {
        "all": manager.all_steps(),
        "weight": found["weight"].cpu().unique().tolist(),
        "step": found["step"],
        "here": found["here"].tolist(),
        "pieces": len(pieces),
        "files": len({piece.file for piece in pieces}),
    }


def fail(folder: str) -> dict[str, Any]:
    """The second process cannot write what is large."""
    manager = xc.CheckpointManager(folder, save_interval=1)
    weight = sharded(1.0)
    manager.save(1, {"weight": weight})
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    if xr.process_index() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    refused = error_of(lambda: manager.save_async(2, {"weight": weight, "other": object() if xr.process_index() else 1}))
    manager.save_async(2, {"weight": weight})
    errors = error_of(lambda: [manager.reached_preemption(step) for step in range(3, 10_000)])
    there = manager.all_steps()
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    manager.save(20_000, {"weight": weight})
    return {"refused": refused, "errors": errors, "there": there, "then": manager.all_steps()}


def refuse(folder: str) -> dict[str, Any]:
    mine = dist.new_group([0]), dist.new_group([1])
    other = f"{folder}/{xr.process_index()}"
    return {
        "paths": error_of(lambda: xc.CheckpointManager(other, 1)),
        "part": error_of(lambda: xc.CheckpointManager(folder, 1, process_group=mine[xr.process_index()])),
        "alone": ALONE,
    }


def replicas(folder: str) -> dict[str, Any]:
    """One state of all, but for what is marked, and for DTensors, of which each has a block; then states that differ."""
    mine, device_mesh = xr.process_index(), init_device_mesh("cpu", (2,))
    manager = xc.CheckpointManager(folder, save_interval=1)

    def state(value: float) -> dict[str, Any]:
        divided = DTensor.from_local(torch.arange(4.0).reshape(2, 2) * value + 10 * mine, device_mesh, [Shard(0)])
        copied = DTensor.from_local(torch.full((2,), value), device_mesh, [Replicate()])
        uneven = distribute_tensor(torch.arange(3.0) * value, device_mesh, [Shard(0)])
        own = PerProcess({"shard": torch.full((2 + mine,), value * mine, device="xla"), "rank": mine * value, "losses": [value + mine]})
        plain = {"weight": torch.full((3,), value, device="xla"), "process": mine}
        return {**plain, "own": own, "divided": divided, "copied": copied, "uneven": uneven, "one": PerProcess(mine * value)}

    manager.save_async(0, state(1.0))
    found = state(0.0)
    manager.restore(0, found)
    errors = {
        "differ": error_of(lambda: manager.save(1, {"same": torch.ones(2), "weight": torch.full((3,), float(mine), device="xla")})),
        "names": error_of(lambda: manager.save(1, {f"weight {mine}": torch.ones(2)})),
        "shapes": error_of(lambda: manager.save(1, {"weight": torch.ones(2 + mine)})),
        "marks": error_of(lambda: manager.save(1, {"value": PerProcess(1) if mine else 1})),
        "alone": error_of(lambda: xla_serialization.save({"divided": found["divided"]}, f"{folder}/alone", master_only=False)),
    }
    manager.save_async(1, {"weight": torch.full((3,), float(mine))})
    return {
        "weight": found["weight"].tolist(),
        "own": [found["own"].value["shard"].tolist(), found["own"].value["rank"], found["own"].value["losses"], found["one"].value],
        "process": found["process"],
        "blocks": [found[name].to_local().tolist() for name in ("divided", "copied", "uneven")],
        "errors": errors,
        "later": error_of(manager.join),
        "all": manager.all_steps(),
    }


def whole(folder: str) -> dict[str, Any]:
    """`xm.save` of tensors that are divided among the processes, sent in parts of a few bytes."""
    whole_tensors._EXCHANGED_BYTES = 48
    weight = sharded(3.0)
    weight += torch.arange(32.0).reshape(8, 4).to("xla")
    low = sharded(0.5).to(torch.bfloat16)
    state = {"weight": weight, "tied": weight, "low": low, "plain": torch.arange(3, device="xla"), "here": torch.ones(2)}
    kept = {**state, "empty": torch.ones(0, 4, device="xla"), "parameter": torch.nn.Parameter(sharded(2.0)), "step": 7}
    path = f"{folder}/whole.pt"
    xm.save(kept, path, global_master=True, sync=True)
    xm.save(kept, f"{path}.{xr.process_index()}", master_only=False)
    different = error_of(lambda: xm.save({"weight": torch.ones(2 + xr.process_index(), device="xla")}, path, global_master=True))
    parted = error_of(lambda: xser.save({"weight": weight}, path))
    nowhere = error_of(lambda: xm.save({"weight": weight}, f"{folder}/none{xr.process_index() or ''}/x.pt", master_only=False))
    return {"different": different, "nowhere": nowhere, "parted": parted, "device": weight.device.type}


def forever(folder: str) -> None:
    """Saves on and on, from the step on that is there."""
    path = Path(folder) / "saved"
    first = xla_serialization.load(path)["step"] + 1 if path.exists() else 0
    for step in itertools.count(first):
        xla_serialization.save({"weight": sharded(step), "here": torch.full((2,), float(step)), "step": step}, path)
        print(f"saved {step};", flush=True)


ALONE: list[str] = []


def main() -> None:
    action, folder = sys.argv[1:]
    if action != "replicas":
        xr.use_spmd()
    ALONE.extend(error_of(lambda: xc.CheckpointManager(folder, 1)))
    if action == "replicas":
        dist.init_process_group("cpu:gloo,xla:xla", init_method="xla://")
    else:
        dist.init_process_group("gloo")
    actions = (preempt, steps, fail, refuse, replicas, whole, forever)
    report = {one.__name__: one for one in actions}[action](folder)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
