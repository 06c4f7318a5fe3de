"""Torch's functional collectives on two replicas, recorded and inside compiled functions; part of `process_groups.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.utils._pytree import tree_leaves

import torch_xla
from xla_core.abi.metrics import snapshot

OPS = torch.ops._c10d_functional
WITH_GRADIENTS = torch.ops._c10d_functional_autograd


def payload(rank: int, *shape: int) -> torch.Tensor:
    """The input of a rank, on the CPU: values that differ in all elements and all ranks."""
    return (torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 1.5) * (rank + 2)


def value(rank: int, *shape: int) -> torch.Tensor:
    return payload(rank, *shape).to("xla")


def counted(*names: str) -> list[int]:
    counters = snapshot().counters
    return [counters.get(name, 0) for name in names]


def failure(action: Callable[[], Any]) -> list[str]:
    try:
        action()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def recorded(rank: int, group: Any) -> dict[str, Any]:
    """The results of every operation, and whether recording them all ran nothing."""
    torch_xla.sync()
    before = counted("ExecuteComputation")
    results: dict[str, Any] = {
        f"all_reduce {name}": funcol.all_reduce(value(rank, 3), name, group) for name in ("sum", "avg", "product", "min", "max")
    }
    flags = torch.tensor([1 + rank, 2, 7 - rank], device="xla")
    results |= {f"all_reduce {name}": funcol.all_reduce(flags, name, group) for name in ("band", "bor")}
    listed, written, filled = [value(rank, 3), value(rank, 2, 2)], [value(rank, 3), value(rank, 2, 2)], torch.zeros(6, device="xla")
    single = value(rank, 3)
    results |= {
        "all_reduce_coalesced": funcol.all_reduce_coalesced(listed, "sum", group),
        "all_reduce_coalesced_": OPS.all_reduce_coalesced_(written, "sum", group.group_name),
        "all_reduce_": OPS.wait_tensor(OPS.all_reduce_(single, "max", group.group_name)),
        "all_gather": funcol.all_gather_single(value(rank, 2, 3), 0, group),
        "all_gather dim 1": funcol.all_gather_single(value(rank, 2, 3), 1, group),
        "all_gather number": funcol.all_gather_single(value(rank), 0, group),
        "all_gather_coalesced": funcol.all_gather_single_coalesced(listed, group),
        "all_gather_out": OPS.all_gather_into_tensor_out(value(rank, 3), 2, group.group_name, out=filled),
        "reduce_scatter": funcol.reduce_scatter_single(value(rank, 4, 2), "sum", 0, group),
        "reduce_scatter dim 1": funcol.reduce_scatter_single(value(rank, 2, 4), "avg", 1, group),
        "reduce_scatter_coalesced": funcol.reduce_scatter_single_coalesced([value(rank, 2), value(rank, 4)], "max", [0, 0], group),
        "reduce_scatter_out": OPS.reduce_scatter_tensor_out(value(rank, 4), "sum", 2, group.group_name, out=torch.zeros(2, device="xla")),
        "all_to_all": funcol.all_to_all_single(value(rank, 4, 2), None, None, group),
        "all_to_all by sizes": funcol.all_to_all_single(value(rank, 4), [2, 2], [2, 2], group),
        "broadcast": funcol.broadcast(value(rank, 3), 1, group),
        "broadcast_": OPS.broadcast_(value(rank, 3), 1, group.group_name),
        "mixed": value(rank, 3) * funcol.all_reduce(value(rank, 3), "sum", group),
        "inputs": listed,
        "written": [single, *written, filled],
    }
    lazy = counted("ExecuteComputation") == before
    kinds = sorted({type(leaf).__name__ for leaf in tree_leaves(results)})
    found = {name: [leaf.tolist() for leaf in tree_leaves(result)] for name, result in results.items()}
    return {"lazy": lazy, "kinds": kinds, "results": found}


def refused(rank: int, group: Any) -> dict[str, list[str]]:
    x = value(rank, 4)
    return {
        "unknown": failure(lambda: funcol.all_reduce(x, "mean", group)),
        "mismatched": failure(lambda: funcol.all_to_all_single(x, [1, 3], [1, 3], group)),
        "other rows": failure(lambda: funcol.all_to_all_single(x, [1, 1], [1, 1], group)),
        "no group": failure(lambda: OPS.all_reduce(x, "sum", "nobody")),
    }


def gradients(rank: int, group: Any) -> dict[str, Any]:
    """Of the sum of the squares of each result."""
    name = group.group_name
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "all_reduce": lambda x: funcol.all_reduce(x, "sum", group),
        "all_gather": lambda x: funcol.all_gather_single(x, 0, group),
        "reduce_scatter": lambda x: funcol.reduce_scatter_single(x, "sum", 0, group),
        "all_to_all": lambda x: funcol.all_to_all_single_autograd(x, [2, 2], [2, 2], group),
        "second all_gather": lambda x: WITH_GRADIENTS.all_gather_into_tensor(x, 2, name),
        "second reduce_scatter": lambda x: WITH_GRADIENTS.reduce_scatter_tensor(x, "sum", 2, name),
        "second all_to_all": lambda x: WITH_GRADIENTS.all_to_all_single(x, [2, 2], [2, 2], name),
    }
    found = {}
    for title, function in functions.items():
        x = value(rank, 4).requires_grad_()
        function(x).square().sum().backward()
        found[title] = None if x.grad is None else x.grad.tolist()
    return found


def compiled(rank: int, group: Any) -> dict[str, Any]:
    """Collectives inside a compiled function, pending ones before it and behind it."""

    def step(x: torch.Tensor) -> Any:
        funcol.broadcast(x, 0, group)  # nobody wants its result, but all replicas issue it
        total = funcol.all_reduce(x * 2, "sum", group) + 1
        mine = funcol.reduce_scatter_single(total, "max", 0, group)
        swapped = funcol.all_to_all_single(x, None, None, group)
        dist.all_reduce(x)
        return total, funcol.all_gather_single(mine, 0, group), swapped, x + 0

    run = torch.compile(step, backend="openxla", fullgraph=True)
    calls = []
    for call in range(3):
        before = funcol.all_reduce(value(rank, 4) + call, "sum", group)
        results = run(value(rank, 4) + call)
        behind = funcol.all_reduce(value(rank, 4) - call, "min", group)
        calls.append([item.tolist() for item in (behind, before, *results)])
    x = value(rank, 4)
    torch_xla.sync()
    start = counted("UncachedCompile", "ExecuteComputation")
    run(x)
    steady = [now - then for now, then in zip(counted("UncachedCompile", "ExecuteComputation"), start, strict=True)]
    return {"calls": calls, "steady": steady}


def classic(rank: int) -> list[Any]:
    """The collectives of torch.distributed inside a compiled function, those that dynamo parts it at among them."""

    def step(x: torch.Tensor) -> Any:
        total, first, mine = x * 2, x * 1, torch.zeros(2, device=x.device)
        gathered, exchanged = [torch.zeros(4, device=x.device) for _ in range(2)], torch.zeros(4, device=x.device)
        dist.all_reduce(total, async_op=True).wait()
        dist.broadcast(first, 1)
        dist.all_gather(gathered, x + 1)
        dist.reduce_scatter_tensor(mine, total)
        dist.all_to_all_single(exchanged, x)
        return total, first, gathered[1], mine, exchanged, x + dist.get_world_size()

    run = torch.compile(step, backend="openxla")
    return [[item.tolist() for item in run(value(rank, 4) + call)] for call in range(2)]


def trained(rank: int, group: Any) -> list[Any]:
    """Gradients of a compiled function, whose backward program holds a collective too; of its second call."""
    weight = torch.linspace(-1, 1, 6).reshape(2, 3).to("xla").requires_grad_()

    def loss(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce((x @ weight.t()).tanh(), "sum", group).square().sum()

    run = torch.compile(loss, backend="openxla", fullgraph=True)
    for _ in range(2):
        weight.grad = None
        run(weight, value(rank, 4, 3) / 10).backward()
    return [] if weight.grad is None else weight.grad.tolist()  # type: ignore[no-any-return]


def functional(rank: int, alone: Any) -> dict[str, Any]:
    """All of it. alone: a group of this rank only, beside which the other rank has its own."""
    group = dist.distributed_c10d._get_default_group()
    return {
        "recorded": recorded(rank, group),
        "refused": refused(rank, group),
        "gradients": gradients(rank, group),
        "compiled": compiled(rank, group),
        "classic": classic(rank),
        "trained": trained(rank, group),
        "alone": funcol.all_reduce(value(rank, 3), "avg", alone).tolist(),
        "by group": OPS.all_reduce(value(rank, 3), "sum", group).tolist(),
        "by name": funcol.all_reduce(value(rank, 3), "sum", group.group_name).tolist(),
        "waiting": torch._C._distributed_c10d._get_work_registry_size(),
    }
