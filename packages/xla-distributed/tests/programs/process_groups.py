"""`torch.distributed` with backend `xla` on two replicas: every collective, groups of a mesh, DistributedDataParallel."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.distributed as dist
from functional import functional

import harness
import torch_xla
import torch_xla.experimental.pjrt_backend
from xla_core.abi.metrics import counter


def value(rank: int, *shape: int) -> torch.Tensor:
    """The input of a rank."""
    return torch.arange(float(torch.Size(shape).numel()), device="xla").reshape(shape) + 10 * rank


def empty(count: int, *shape: int) -> list[torch.Tensor]:
    return [torch.zeros(shape, device="xla") for _ in range(count)]


def raised(action: Any) -> str | None:
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return None


def premultiplied(x: torch.Tensor) -> list[float]:
    """The sum of halves."""
    dist.all_reduce(x, torch._C._distributed_c10d._make_nccl_premul_sum(0.5))
    return list(x.tolist())


def spread(whole: torch.Tensor) -> list[list[float]]:
    """Every second column reduced in its place."""
    dist.all_reduce(whole[:, ::2])
    return list(whole.tolist())


def several_shapes(rank: int) -> list[Any]:
    """Lists of tensors of several shapes, as NCCL takes them."""
    parts = [torch.zeros(3, device="xla"), torch.zeros(1, 2, device="xla")]
    dist.all_gather(parts, value(rank, 3) if rank == 0 else value(rank, 1, 2))
    mine = torch.zeros_like(parts[rank])
    dist.reduce_scatter(mine, [value(rank, 3), value(rank, 1, 2)])
    received = [torch.zeros(1 + rank, device="xla"), torch.zeros(2, 1 + rank, device="xla")]
    dist.all_to_all(received, [value(rank, 1 + rank), value(rank, 2)] if rank == 0 else [value(rank, 2), value(rank, 2, 2)])
    return [[each.tolist() for each in parts], mine.tolist(), [each.tolist() for each in received]]


def collectives(rank: int, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {"rank": [dist.get_rank(), dist.get_world_size(), dist.get_backend()]}
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        x = value(rank, 2)
        dist.all_reduce(x, getattr(dist.ReduceOp, name))
        found[name] = x.tolist()
    for name in ("BOR", "BXOR"):
        flags = torch.tensor([1 + rank, 2], device="xla")
        dist.all_reduce(flags, getattr(dist.ReduceOp, name))
        found[name] = flags.tolist()
    found["PREMUL_SUM"] = premultiplied(value(rank, 2))
    for dtype in (torch.int16, torch.int8, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool):
        typed = value(rank, 2).to(dtype)
        dist.all_reduce(typed)
        found[str(dtype)] = (typed.real if dtype.is_complex else typed).float().tolist()
    found["spread"] = spread(value(rank, 2, 4))
    found["several shapes"] = several_shapes(rank)
    handle = dist.all_reduce(x, async_op=True)
    found["async"] = [handle.wait(), x.tolist()]
    listed = empty(size, 2)
    dist.all_gather(listed, value(rank, 2))
    found["all_gather"] = [part.tolist() for part in listed]
    flat = torch.zeros(2 * size, device="xla")
    dist.distributed_c10d._get_default_group().all_gather_single(flat, value(rank, 2))
    found["all_gather_single"] = flat.tolist()
    x = value(rank, 2)
    dist.broadcast(x, 1)
    found["broadcast"] = x.tolist()
    x = value(rank, 2)
    dist.reduce(x, 1)
    found["reduce"] = x.tolist()
    part = torch.zeros(2, device="xla")
    dist.reduce_scatter(part, [value(rank, 2) + place for place in range(size)])
    found["reduce_scatter"] = part.tolist()
    listed = empty(size, 2)
    dist.all_to_all(listed, [value(rank, 2) + 100 * place for place in range(size)])
    found["all_to_all"] = [each.tolist() for each in listed]
    x = torch.zeros(2 * size, device="xla")
    dist.all_to_all_single(x, value(rank, 2 * size))
    found["all_to_all_single"] = x.tolist()
    found["mismatched"] = raised(lambda: dist.all_to_all_single(x, value(rank, 2 * size), [1, 3], [1, 3]))
    listed = empty(size, 2) if rank == 0 else []
    dist.gather(value(rank, 2), listed or None, dst=0)
    found["gather"] = [each.tolist() for each in listed]
    dist.scatter(part, [value(5, 2) + place for place in range(size)] if rank == 1 else None, src=1)
    found["scatter"] = part.tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rank == 0:
            dist.send(value(7, 3), 1)
        else:
            x = torch.zeros(3, device="xla")
            dist.recv(x, 0)
            found["recv"] = x.tolist()
        dist.barrier()
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, {"rank": rank})
    found["objects"] = objects
    return found


def groups(rank: int, alone: Any) -> dict[str, Any]:
    found = {}
    for name, group in (("alone", alone), ("part", dist.new_group([rank], use_local_synchronization=True))):
        x = value(rank, 1)
        dist.all_reduce(x, group=group)
        found[name] = x.tolist()
    return found


def parallel(rank: int, compile_first: bool | None = None) -> dict[str, Any]:
    """DistributedDataParallel's parameters after some steps, and programs compiled after the third.

    compile_first: whether torch.compile takes the module before DistributedDataParallel does; None: not at all.
    """
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).to("xla")
    inner = torch.compile(net, backend="openxla") if compile_first else net
    wrapped = torch.nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=True)
    model = torch.compile(wrapped, backend="openxla") if compile_first is False else wrapped
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    compiled = []
    for _ in range(6):
        batch = torch.randn(8, 4, generator=generator)[4 * rank : 4 * rank + 4].to("xla")
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
        compiled.append(counter("UncachedCompile"))
    return {"end": [parameter.cpu().tolist() for parameter in net.parameters()], "late": compiled[-1] - compiled[2]}


def work(rank: int, folder: str) -> dict[str, Any]:
    dist.init_process_group("xla", init_method="xla://")
    size = dist.get_world_size()
    alone = dist.new_group([rank], pg_options={"xla_pg_options": {"spmd": True}}, use_local_synchronization=True)
    found = {
        "collectives": collectives(rank, size),
        "groups": groups(rank, alone),
        "parallel": parallel(rank),
        "compiled parallel": [parallel(rank, compile_first=first) for first in (True, False)],
        "functional": functional(rank, alone),
    }
    dist.destroy_process_group()
    dist.init_process_group("xla", init_method="pjrt://")
    found["old name"] = [dist.get_rank(), dist.get_world_size()]
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    harness.main(work)
