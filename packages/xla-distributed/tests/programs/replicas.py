"""Reports of two replicas: their job, rendezvous, training and differentiable collectives."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch

import harness
import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla.distributed.data_parallel import Context, DataParallel
from xla_core.abi.metrics import counter

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT")


def place() -> dict[str, Any]:
    return {
        "device": str(xm.xla_device()),
        "devices": xm.get_xla_supported_devices(),
        "real": xm.xla_real_devices(),
        "replication": xm.xla_replication_devices(),
        "ordinal": xr.global_ordinal(),
        "size": xr.world_size(),
        "local": [xr.local_ordinal(), xr.local_process_count(), xr.local_device_count()],
        "global": [xr.global_device_count(), xr.global_runtime_device_count(), xr.process_index(), xr.process_count()],
        "master": xm.is_master_ordinal(),
        "variables": [os.environ.get(name) for name in VARIABLES],
    }


def raised(action: Any) -> str | None:
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return None


def rendezvous(rank: int) -> dict[str, Any]:
    mine = torch.tensor([1.0 + rank], device="xla")
    once = xm.do_on_ordinals(lambda value, name: [str(value.device), value.item(), name], (mine, "x"), ordinals=(1,))
    return {
        "bare": [list(part) for part in xm.rendezvous("bare")],
        "payloads": [part.decode() for part in xm.rendezvous("tag", f"{'long' * rank}{rank}".encode())],
        "mean": xm.mesh_reduce("loss", float(rank), np.mean),
        "scalar": xm.mesh_reduce("numpy", np.float32(rank), lambda parts: [type(part).__name__ for part in parts]),
        "tensors": xm.mesh_reduce("tensor", {"t": mine}, lambda parts: [[str(part["t"].device), part["t"].item()] for part in parts]),
        "once": once,
        "serial": xmp.MpSerialExecutor().run(lambda: rank),
        "wrong": [raised(lambda: xm.xla_rendezvous("text")), raised(lambda: xm.xla_rendezvous(b"", ordinals=[0]))],  # type: ignore[arg-type]
    }


def model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def training(rank: int) -> dict[str, Any]:
    """The parameters after steps on this replica's half of each batch, and gradients reduced in buckets."""
    net = model(5 + rank).to("xla")
    xm.broadcast_master_param(net)
    same = [parameter.cpu().tolist() for parameter in net.parameters()]
    for layer in net:
        if isinstance(layer, torch.nn.BatchNorm1d):
            layer.eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    compiled = []
    for step in range(6):
        os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = "0" if step < 3 else "1"
        batch = torch.randn(8, 4, generator=generator)[4 * rank : 4 * rank + 4].to("xla")
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        result = xm.optimizer_step(optimizer)
        torch_xla.sync()
        compiled.append(counter("UncachedCompile"))
    return {"start": same, "end": [parameter.cpu().tolist() for parameter in net.parameters()], "result": result, "compiled": compiled}


def gradients(rank: int, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in ("sum", "min", "max", "mul"):
        value = torch.tensor([1.0 + rank, 3.0 - rank, 0.0], device="xla", requires_grad=True)
        result = xf.all_reduce(kind, value, scale=2.0 if kind == "sum" else 1.0)
        (result * torch.tensor([1.0, 2.0, 3.0], device="xla")).sum().backward()
        found[kind] = [result.tolist(), value.grad.tolist() if value.grad is not None else None]
    for gather in (xf.all_gather, xf.all_gather_summed):
        value = torch.tensor([[1.0 + rank, 2.0]], device="xla", requires_grad=True)
        result = gather(value, 0)
        (result * (torch.arange(2.0 * count, device="xla").reshape(count, 2) + rank)).sum().backward()
        found[gather.__name__] = [result.tolist(), value.grad.tolist() if value.grad is not None else None]
    flag = torch.tensor([True], device="xla")
    found["or"] = raised(lambda: xm.all_reduce("or", flag.float()))
    full_w, full_x = torch.arange(12.0).reshape(4, 3), torch.arange(12.0).reshape(3, 4)
    mine = full_w[2 * rank : 2 * rank + 2].to("xla"), full_x[:, 2 * rank : 2 * rank + 2].contiguous().to("xla")
    found["mm"] = [xf.distributed_mm(*mine, split=split).tolist() for split in (1, 3)]
    return found


def normalized(rank: int) -> dict[str, Any]:
    """Batch normalization over both halves of a batch, beside torch's own over the whole."""
    whole = torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(1))
    weights = torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(2))
    part = slice(3 * rank, 3 * rank + 3)
    stock, ours = torch.nn.BatchNorm2d(3), xf.SyncBatchNorm(3).to("xla")
    expected_input = whole.clone().requires_grad_()
    (stock(expected_input) * weights).sum().backward()
    mine = whole[part].to("xla").requires_grad_()
    result = ours(mine)
    (result * weights[part].to("xla")).sum().backward()
    assert mine.grad is not None and expected_input.grad is not None
    torch.testing.assert_close(mine.grad.cpu(), expected_input.grad[part], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_mean.cpu(), stock.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.running_var.cpu(), stock.running_var, rtol=1e-4, atol=1e-5)
    ours.eval()
    stock.eval()
    torch.testing.assert_close(ours(mine).cpu(), stock(whole[part]), rtol=1e-4, atol=1e-5)
    return {"close": True}


def looped(rank: int) -> Any:
    """A loop over this process's devices, of which there is one: it is still one replica of the job."""

    def loop(model: torch.nn.Module, batches: Any, device: torch.device, context: Context) -> list[Any]:
        totals = [xm.all_reduce("sum", batch).item() for batch in batches]
        return [totals, str(device), xr.world_size(), xr.global_ordinal()]

    return DataParallel(torch.nn.Identity())(loop, [torch.tensor(10.0 * step + rank) for step in range(3)])


def wrong_arguments(count: int) -> dict[str, str | None]:
    x = torch.ones(count + 1, 2, device="xla")
    return {
        "reduction": raised(lambda: xm.all_reduce("avg", x)),
        "repeated": raised(lambda: xm.all_reduce("sum", x, groups=[[0, 0]])),
        "range": raised(lambda: xm.all_reduce("sum", x, groups=[[0, count]])),
        "missing": raised(lambda: xm.all_reduce("sum", x, groups=[[(xr.global_ordinal() + 1) % count]])),
        "cpu": raised(lambda: xm.all_reduce("sum", torch.ones(1))),
        "uneven": raised(lambda: xm.all_gather(x, groups=[list(range(count - 1)), [count - 1]])),
        "gather": raised(lambda: xm.all_gather((x,))),
        "pinned": raised(lambda: xm.all_gather([x])),
        "outputs": raised(lambda: xm.all_gather([x], output=[], pin_layout=False)),
        "output": raised(lambda: xm.all_gather([x], output=x, pin_layout=False)),
        "divisible": raised(lambda: xm.reduce_scatter("sum", x, 1.0, 0, count)),
        "shards": raised(lambda: xm.reduce_scatter("sum", x, 1.0, 0, count + 1)),
        "split": raised(lambda: xm.all_to_all(x, 0, 1, count)),
        "count": raised(lambda: xm.all_to_all(x, 0, 1, count + 1)),
        "pairs": raised(lambda: xm.collective_permute(x, [[0, 1], [1, 1]])),
        "root": raised(lambda: xm.collective_broadcast([x], root_ordinal=count)),
        "send": raised(lambda: xm.send(x, 1)),
        "recv": raised(lambda: xm.recv(x, 1)),
        "dim": raised(lambda: xm.all_gather(x, 2)),
    }


def left_out() -> list[Any]:
    """The error, on each replica, for groups in which not all are; and the collective after it."""
    x = torch.ones(2, device="xla")
    try:
        xm.all_reduce("sum", x, groups=[[0]])
    except ValueError as error:
        return [str(error), xm.all_reduce("sum", x).tolist()]
    return ["nothing"]


def work(rank: int, folder: str) -> dict[str, Any]:
    count = xr.world_size()
    return {
        "place": place(),
        "rendezvous": rendezvous(rank),
        "training": training(rank),
        "gradients": gradients(rank, count),
        "normalized": normalized(rank),
        "looped": looped(rank),
        "wrong": wrong_arguments(count),
        "left out": left_out(),
    }


if __name__ == "__main__":
    harness.main(work, start_method="spawn")
