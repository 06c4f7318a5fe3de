"""Groups of four replicas by backend `xla` and, beside it, by gloo on the CPU: both must find the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import harness
import torch_xla

GROUPS = ([0, 2], [1, 3], [0, 1, 3], [3, 1], [2], [0, 1, 2, 3], [1, 2, 3])


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


PARTS: tuple[Callable[[Member], Any], ...] = (of_groups, in_between, grid, pipeline)


def work(rank: int, folder: str) -> dict[str, Any]:
    found = {}
    for backend, device in (("gloo", "cpu"), ("xla", "xla")):
        dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=4)
        found[backend] = {part.__name__: part(Member(rank, device)) for part in PARTS}
        dist.destroy_process_group()
    return found


if __name__ == "__main__":
    harness.main(work)
