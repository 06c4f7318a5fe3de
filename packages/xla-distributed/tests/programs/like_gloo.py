"""Groups of four replicas by backend `xla` and, beside it, by gloo on the CPU: both must find the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as nnf

import harness
import torch_xla

GROUPS = ([0, 2], [0, 1, 3], [3, 1], [2], [0, 1, 2, 3])


class Member:
    """One replica with one backend. value: its input of a shape."""

    def __init__(self, rank: int, device: str) -> None:
        self.rank = rank
        self.device = device

    def value(self, *shape: int) -> torch.Tensor:
        return torch.arange(float(torch.Size(shape).numel()), device=self.device).reshape(shape) + 10 * self.rank


def raised(action: Callable[[], Any]) -> str | None:
    """The type of the error."""
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return None


def reduced(me: Member, group: Any) -> Any:
    x = me.value(3) * 2
    dist.all_reduce(x, group=group)
    return (x + 1).tolist()


def gathered(me: Member, group: Any) -> Any:
    parts = [torch.zeros(2, device=me.device) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, me.value(2), group=group)
    return [part.tolist() for part in parts]


def of_groups(me: Member) -> dict[str, Any]:
    """All groups, made by all; each used by its members only, which do other things in between."""
    groups = [dist.new_group(ranks) for ranks in GROUPS]
    found: dict[str, Any] = {"nobody": raised(lambda: dist.new_group([]))}
    for ranks, group in zip(GROUPS, groups, strict=True):
        if me.rank not in ranks:
            found[f"no {ranks}"] = group is dist.GroupMember.NON_GROUP_MEMBER
            continue
        found[str(ranks)] = [dist.get_rank(group), dist.get_world_size(group), reduced(me, group), gathered(me, group)]
        if me.rank == 1:  # a program that nobody else runs
            found["alone"] = found.get("alone", 0.0) + (me.value(2) @ me.value(2)).item()
    return found


def in_between(me: Member) -> list[float]:
    """Collectives of the world that are pending on both sides of one of a group."""
    group = dist.new_group([0, 3])
    x = me.value(2)
    dist.all_reduce(x)
    torch_xla.sync()
    y = x * (1 + me.rank)
    if me.rank in (0, 3):
        dist.all_reduce(y, group=group)
    dist.all_reduce(y)
    return y.tolist()


def grid(me: Member) -> list[float]:
    """Rows and columns of a grid, at once."""
    row = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][me.rank // 2]
    column = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][me.rank % 2]
    x = me.value(2)
    dist.all_reduce(x, group=row)
    dist.all_reduce(x, dist.ReduceOp.MAX, group=column)
    dist.broadcast(x, dist.get_global_rank(row, 1), group=row)
    dist.barrier(column)
    return x.tolist()


def pipeline(me: Member) -> list[float]:
    """Two stages of two replicas, with other programs on each."""
    stages = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    link = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])][me.rank % 2]
    x = me.value(4)
    for turn in range(3):
        if me.rank < 2:
            x = (x + turn).sin()
            dist.all_reduce(x, group=stages[0])
            dist.broadcast(x, me.rank, group=link)
        else:
            dist.broadcast(x, me.rank - 2, group=link)
            y = x.cos() @ x
            dist.all_reduce(y, dist.ReduceOp.AVG if me.device == "xla" else dist.ReduceOp.SUM, group=stages[1])
            x = x + y * (2 if me.device == "xla" else 1)
    return [round(number, 3) for number in x.tolist()]


def every(me: Member, group: Any, ranks: list[int]) -> dict[str, Any]:
    """Each collective in a group."""
    size, place = len(ranks), ranks.index(me.rank)
    last = ranks[-1]
    found: dict[str, Any] = {}

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, device=me.device)

    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        x = me.value(3) + 1 if name[0] != "B" else torch.tensor([me.rank, 6 + me.rank, 255], dtype=torch.int32, device=me.device)
        dist.all_reduce(x, getattr(dist.ReduceOp, name), group=group)
        found[name] = x.tolist()
    x, whole = me.value(2, 3), me.value(2, 6)
    works = [dist.all_reduce(x, group=group, async_op=True), dist.all_reduce(whole.t(), group=group, async_op=True)]
    found["async"] = [[bool(work.wait()) for work in works], x.tolist(), whole.tolist()]
    number = torch.tensor(5.0 * me.rank, device=me.device)
    numbers = [torch.tensor(0.0, device=me.device) for _ in ranks]
    dist.all_gather(numbers, number, group=group)
    dist.all_reduce(number, group=group)
    found["scalars"] = [number.item(), [each.item() for each in numbers]]
    pair = [me.value(2), me.value(2, 2)]
    dist.all_reduce_coalesced(pair, group=group)
    found["coalesced"] = [each.tolist() for each in pair]
    lists = [[zeros(2), zeros(2, 2)] for _ in ranks]
    dist.all_gather_coalesced(lists, [me.value(2), me.value(2, 2)], group=group)
    found["gathered lists"] = [[each.tolist() for each in listed] for listed in lists]
    flat = zeros(size * 2, 2)
    dist.all_gather_into_tensor(flat, me.value(2, 2).t(), group=group)
    found["all_gather_into_tensor"] = flat.tolist()
    x = me.value(3).to(torch.float64)
    dist.broadcast(x, last, group=group)
    found["broadcast"] = [str(x.dtype), x.tolist()]
    x = me.value(3)
    dist.broadcast(x, group_src=1, group=group)
    found["group_src"] = x.tolist()
    x = me.value(3)
    dist.reduce(x, last, group=group)
    found["reduce"] = x.tolist() if me.rank == last else None
    parts = [zeros(2) for _ in ranks]
    dist.gather(me.value(2), parts if me.rank == last else None, dst=last, group=group)
    found["gather"] = [part.tolist() for part in parts]
    part = zeros(2)
    dist.scatter(part, [me.value(2) + 100 * j for j in range(size)] if me.rank == last else None, src=last, group=group)
    found["scatter"] = part.tolist()
    dist.reduce_scatter(part, [me.value(2) + j for j in range(size)], group=group)
    found["reduce_scatter"] = part.tolist()
    dist.reduce_scatter_tensor(part, me.value(2 * size), group=group)
    found["reduce_scatter_tensor"] = part.tolist()
    out = zeros(2 * size)
    dist.all_to_all_single(out, me.value(2 * size), group=group)
    found["all_to_all_single"] = out.tolist()
    sends = [(place + j) % 3 for j in range(size)]
    out = zeros(sum(sends), 2)  # the sizes are the same both ways
    dist.all_to_all_single(out, me.value(sum(sends), 2), sends, sends, group=group)
    found["uneven"] = out.tolist()
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": me.rank, "text": "x" * me.rank}, group=group)
    found["objects"] = objects
    brought = [{"from": me.rank}, [me.rank]]
    dist.broadcast_object_list(brought, src=ranks[0], group=group)
    taken: list[Any] = [None]
    dist.scatter_object_list(taken, [f"for {rank}" for rank in ranks], src=ranks[0], group=group)
    collected: list[Any] | None = [None] * size if me.rank == last else None
    dist.gather_object((me.rank,), collected, dst=last, group=group)
    found["more objects"] = [brought, taken, [list(each) for each in collected or []]]
    found["errors"] = [
        raised(lambda: dist.all_gather([zeros(2)] * (size + 1), zeros(2), group=group)),
        raised(lambda: dist.all_to_all_single(zeros(2), zeros(2), [2] + [1] * size, group=group)),
        raised(lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64, device=me.device), dist.ReduceOp.MAX, group=group)),
        raised(lambda: dist.broadcast(zeros(2), 7, group=group)),
        raised(lambda: dist.broadcast(zeros(2), group_src=size, group=group)),
    ]
    return found


def collectives(me: Member) -> dict[str, Any]:
    """Each collective in a group, while the others do nothing."""
    ranks = [1, 3]
    group = dist.new_group(ranks)
    return every(me, group, ranks) if me.rank in ranks else {}


def messages(me: Member) -> dict[str, Any]:
    """Point to point: crossing, tagged, out of order, from anybody, in a group, while the fourth replica does nothing."""
    ranks = [0, 1, 3]
    group = dist.new_group(ranks)
    if me.rank not in ranks:
        return {}
    place = ranks.index(me.rank)
    after, before = ranks[(place + 1) % 3], ranks[place - 1]
    into = torch.zeros(2, device=me.device)
    operations = [dist.P2POp(dist.irecv, into, before, group), dist.P2POp(dist.isend, me.value(2), after, group)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    found: dict[str, Any] = {"ring": into.tolist()}
    if me.rank == 0:
        sent = [dist.isend(me.value(2, 2) + tag, 1, group, tag) for tag in (5, 6)]
        sent += [dist.isend(torch.tensor([turn], device=me.device), 1) for turn in range(3)]
        for work in sent:
            work.wait()
    if me.rank == 1:
        tagged = {tag: torch.zeros(2, 2, device=me.device) for tag in (6, 5)}
        for tag, each in tagged.items():
            dist.recv(each, 0, group, tag)
        several = [torch.zeros(1, dtype=torch.int64, device=me.device) for _ in range(3)]
        works = [dist.irecv(each, 0) for each in several]
        for work in reversed(works):
            work.wait()
        found["received"] = [[each.tolist() for each in tagged.values()], [each.item() for each in several]]
    dist.barrier(group)
    if me.rank == 3:
        anybody = [torch.zeros(1, device=me.device) for _ in range(2)]
        sources = [dist.recv(each, None, group) for each in anybody]
        found["anybody"] = sorted((source, each.item()) for source, each in zip(sources, anybody, strict=True))
    else:
        dist.send(torch.tensor([float(me.rank)], device=me.device), 3, group)
    return found


def gradients(me: Member) -> dict[str, Any]:
    """Of a weighted sum of each result of a collective with a gradient, in a group while the others do nothing."""
    ranks = [0, 1]  # others confuse torch.distributed.nn with gloo
    group = dist.new_group(ranks)
    if me.rank not in ranks:
        return {}
    place = ranks.index(me.rank)
    uneven = [[1, 3], [3, 1]][place]
    functions: dict[str, Callable[[torch.Tensor], Any]] = {
        "gather": lambda x: funcol.all_gather_tensor_autograd(x, 0, group),
        "gather dim 1": lambda x: funcol.all_gather_tensor_autograd(x, 1, group),
        "scatter": lambda x: funcol.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        "all_to_all": lambda x: funcol.all_to_all_single_autograd(x, uneven, uneven, group),
        "reduce": lambda x: funcol.all_reduce(x, "sum", group),
        "nn all_reduce": lambda x: nnf.all_reduce(x, group=group),
        "nn all_gather": lambda x: torch.stack(nnf.all_gather(x, group=group)),
        "nn broadcast": lambda x: nnf.broadcast(x, 1, group=group),
        "nn all_to_all_single": lambda x: nnf.all_to_all_single(torch.zeros_like(x), x, group=group),
    }
    found: dict[str, Any] = {}
    for name, function in functions.items():
        x = me.value(4, 2).requires_grad_()
        result = function(x * 2)
        (result * (torch.arange(float(result.numel()), device=me.device).reshape(result.shape) + me.rank)).sum().backward()
        found[name] = [result.tolist(), None if x.grad is None else x.grad.tolist()]
    return found


def versions(me: Member) -> dict[str, bool]:
    """Whether autograd sees each collective write to a tensor: what it made of it before may still be needed."""
    zeros = partial(torch.zeros, device=me.device)
    x, out, parts = zeros(4), zeros(4), [zeros(1) for _ in range(4)]
    written: dict[str, tuple[torch.Tensor, Callable[[], Any]]] = {
        "all_reduce": (x, lambda: dist.all_reduce(x)),
        "broadcast": (x, lambda: dist.broadcast(x, 1)),
        "broadcast of a view": (x, lambda: dist.broadcast(x[:2], 1)),
        "reduce": (x, lambda: dist.reduce(x, 1)),
        "recv": (x, lambda: {0: lambda: dist.send(zeros(4), 1), 1: lambda: dist.recv(x, 0)}.get(me.rank, tuple)()),
        "scatter": (out, lambda: dist.scatter(out, [zeros(4)] * 4 if me.rank == 1 else None, 1)),
        "all_to_all_single": (out, lambda: dist.all_to_all_single(out, x)),
        "all_to_all_single, uneven": (out, lambda: dist.all_to_all_single(out, x, [1] * 4, [1] * 4)),
        "all_gather": (parts[0], lambda: dist.all_gather(parts, zeros(1))),
        "all_gather_into_tensor": (out, lambda: dist.all_gather_into_tensor(out, zeros(1))),
        "reduce_scatter_tensor": (parts[0], lambda: dist.reduce_scatter_tensor(parts[0], x)),
        "gather": (parts[0], lambda: dist.gather(zeros(1), parts if me.rank == 1 else None, 1)),
    }
    found = {}
    for name, (tensor, collective) in written.items():
        before = tensor._version
        collective()
        found[name] = tensor._version > before
    return found


PARTS: tuple[Callable[[Member], Any], ...] = (of_groups, in_between, grid, pipeline, collectives, messages, gradients, versions)


def work(rank: int, folder: str) -> dict[str, Any]:
    found = {}
    for backend, device in (("gloo", "cpu"), ("xla", "xla")):
        dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=4)
        found[backend] = {part.__name__: part(Member(rank, device)) for part in PARTS}
        dist.destroy_process_group()
    return found


if __name__ == "__main__":
    harness.main(work)
