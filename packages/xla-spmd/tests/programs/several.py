"""One SPMD program over eight devices, in one process or in several: reports what must not depend on that. usage: several.py FILE"""

from __future__ import annotations

import json
import sys
import warnings

import torch

import torch_xla
import torch_xla._XLAC as lib
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from xla_core.abi.metrics import snapshot

warnings.simplefilter("error")
GROUPS = [[2 * row, 2 * row + 1] for row in range(4)]


def manual(mesh: xs.Mesh) -> dict[str, float]:
    """A product whose inner dimension is sharded, with the user's own collectives: how far from the CPU."""
    torch.manual_seed(0)
    x, weight = torch.randn(8, 16), torch.randn(16, 4)
    on_devices = x.to("xla").requires_grad_()
    shard = xs.enable_manual_sharding(on_devices, ("x", "y"), mesh=mesh)
    other = xs.enable_manual_sharding(weight.to("xla"), ("y", None), mesh=mesh)
    product = xs.disable_manual_sharding(xf.all_reduce("sum", shard @ other, groups=GROUPS), ("x", None), (8, 4), mesh=mesh)
    product.sum().backward()
    columns = xs.enable_manual_sharding(on_devices.detach(), ("x", "y"), mesh=mesh)
    gathered = xs.disable_manual_sharding(xm.all_gather(columns, 1, groups=GROUPS), ("x", None), (8, 16), mesh=mesh)
    halves = xs.disable_manual_sharding(lib._xla_spmd_reduce_scatter("sum", columns, 1.0, 1, 2, GROUPS), ("x", "y"), (8, 8), mesh=mesh)
    sums = xs.disable_manual_sharding(lib._xla_spmd_all_reduce("sum", columns, 0.5, GROUPS), ("x", None), (8, 8), mesh=mesh)
    total = x[:, :8] + x[:, 8:]  # of the two columns of devices
    return {
        "product": (product.cpu() - x @ weight).abs().max().item(),
        "gathered": (gathered.cpu() - x).abs().max().item(),
        "low level": max((halves.cpu() - total).abs().max().item(), (sums.cpu() - total * 0.5).abs().max().item()),
        "gradient": (on_devices.grad.cpu() - torch.ones(8, 4) @ weight.t()).abs().max().item(),
    }


def sent() -> float:
    """Bytes that went to devices."""
    found = snapshot().metrics.get("OutboundData")
    return 0.0 if found is None else found.accumulator


def training(mesh: xs.Mesh) -> dict[str, object]:
    """Steps on batches of which each process loads its block."""
    torch.manual_seed(1)
    net = torch.nn.Linear(16, 8).to("xla")
    xs.mark_sharding(net.weight, mesh, ("x", "y"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    mine, count = xr.process_index(), xr.process_count()
    batches = [torch.randn(8, 16).chunk(count)[mine] for _ in range(4)]
    spec = xs.ShardingSpec(mesh, ("x", None), minibatch=True)
    losses = []
    before = sent()
    spec.upload(batches[0])
    uploaded = sent() - before
    for batch in pl.MpDeviceLoader([[spec.upload(batch)] for batch in batches], torch_xla.device()):
        optimizer.zero_grad()
        loss = net(batch[0]).square().mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        losses.append(loss.item())
    shards = xs.wrap_if_sharded(net.weight).local_shards
    return {
        "uploaded": uploaded,
        "losses": losses,
        "weight": net.weight.tolist(),
        "shards": {shard.shard_device: shard.data.tolist() for shard in shards},
    }


def any_mesh(mesh: xs.Mesh) -> dict[str, object]:
    """Dimensions that do not divide evenly, and a mesh of another order, over the devices of all processes: how far from the CPU."""
    x = torch.arange(35.0).reshape(7, 5)
    uneven = xs.mark_sharding(x.to("xla"), mesh, ("x", "y"))
    other = xs.Mesh([3, 1, 6, 0, 7, 2, 5, 4], (2, 4), ("x", "y"))
    turned = xs.mark_sharding(x.to("xla"), other, ("y", "x"))
    turned.global_tensor.add_(uneven.global_tensor)
    torch_xla.sync()
    loaded = xs.mark_sharding(torch.zeros(7, 5).to("xla"), other, ("y", "x"))
    loaded.load_local_shards_(turned.local_shards)
    inside = all(torch.equal(shard.unpadded_data, (2 * x)[tuple(shard.indices)]) for shard in turned.local_shards)
    far = [(t.cpu() - wanted).abs().max().item() for t, wanted in ((uneven, x), (turned, 2 * x), (loaded, 2 * x))]
    return {"far": far, "inside": inside, "shape": list(turned.local_shards[0].data.shape)}


def refusal() -> str:
    """What a collective of a whole tensor says."""
    try:
        xm.all_reduce("sum", torch.ones(2, 3, device="xla"))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main() -> None:
    xr.use_spmd()
    mesh = xs.Mesh(range(xr.global_runtime_device_count()), (4, 2), ("x", "y"))
    report = {"devices": [len(mesh.device_ids), xr.addressable_runtime_device_count()], "manual": manual(mesh)}
    report |= {"training": training(mesh), "refusal": refusal(), "any mesh": any_mesh(mesh)}
    with open(f"{sys.argv[1]}.{xr.process_index()}", "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
