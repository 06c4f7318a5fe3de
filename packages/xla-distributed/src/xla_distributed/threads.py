"""Collectives of replicas that are threads of one process.

A process cannot run one program for several of its devices while each has its own tape. So a collective among threads first runs
what is pending on each device, hands the values over, and is then recorded like any operation on what arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch

from xla_core.abi import buffer_of, sync
from xla_distributed import meeting, ops

Tensors = Sequence[torch.Tensor]
Everyone = list[list[torch.Tensor]]
_FOLDS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
}


def run(operation: Any, inputs: Any, *rest: Any) -> Any:
    """The results of a collective, one of `ops`, among the threads: as the operation gives them, without the token."""
    name = str(operation).split(".")[1]  # xla_distributed.all_reduce.default
    return _COLLECTIVES[operation](name, inputs, *rest)


def _gathered(
    name: str, tensors: Tensors, rest: Sequence[Any], members: Sequence[int] = (), sizes: Sequence[int] = ()
) -> tuple[Everyone, int]:
    """The tensors of each member of this thread's group, on its own device, and its place there."""
    shapes = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors)
    what = f"{name}({', '.join([shapes, *map(str, rest)])}; groups {list(members)} of {list(sizes)})"
    device = tensors[0].device
    brought = [tensor.clone() for tensor in tensors]  # the sender may write to its own while others read
    sync(device)
    for tensor in brought:
        buffer_of(tensor)  # others hold it for a while: never donated, so that the next program is the same however long that is
    everyone = meeting.exchange(what, brought)
    group = _home(list(members), list(sizes)) or range(len(everyone))
    return [[tensor.to(device) for tensor in everyone[member]] for member in group], group.index(meeting.ordinal())


def _home(members: list[int], sizes: list[int]) -> list[int] | None:
    start = 0
    for size in sizes:
        group = members[start : start + size]
        if meeting.ordinal() in group:
            return group
        start += size
    return None


def _reduced(everyone: Everyone, reduction: str, scale: float) -> list[torch.Tensor]:
    totals = [reduce(_FOLDS[reduction], each) for each in zip(*everyone, strict=True)]
    return totals if scale == 1 else [(total * scale).to(total.dtype) for total in totals]


def _all_reduce(name: str, inputs: Tensors, reduction: str, scale: float, members: Any, sizes: Any) -> list[torch.Tensor]:
    """Tensors of one dtype travel together."""
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in inputs:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    flat = [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in kinds.values()]
    everyone, _ = _gathered(name, flat, (reduction, scale), members, sizes)
    totals = zip(kinds.items(), _reduced(everyone, reduction, scale), strict=True)
    parts = {dtype: iter(total.split([tensor.numel() for tensor in tensors])) for (dtype, tensors), total in totals}
    return [next(parts[tensor.dtype]).reshape(tensor.shape) for tensor in inputs]


def _all_gather(name: str, inputs: Tensors, dim: int, count: int, members: Any, sizes: Any) -> list[torch.Tensor]:
    everyone, _ = _gathered(name, inputs, (dim,), members, sizes)
    return [torch.cat(each, dim) for each in zip(*everyone, strict=True)]


def _reduce_scatter(
    name: str, inputs: Tensors, reduction: str, scale: float, dim: int, count: int, members: Any, sizes: Any
) -> list[torch.Tensor]:
    everyone, place = _gathered(name, inputs, (reduction, scale, dim), members, sizes)
    return [total.chunk(count, dim)[place] for total in _reduced(everyone, reduction, scale)]


def _all_to_all(name: str, value: torch.Tensor, split: int, concat: int, count: int, members: Any, sizes: Any) -> torch.Tensor:
    everyone, place = _gathered(name, [value], (split, concat), members, sizes)
    return torch.cat([tensor.chunk(count, split)[place] for (tensor,) in everyone], concat)


def _collective_permute(name: str, value: torch.Tensor, pairs: Sequence[int]) -> torch.Tensor:
    everyone, place = _gathered(name, [value], (pairs,))
    source = {target: source for source, target in zip(pairs[::2], pairs[1::2], strict=True)}.get(place)
    return torch.zeros_like(value) if source is None else everyone[source][0].clone()  # what was brought others may still read


def _broadcast(name: str, inputs: Tensors, root: int, members: Any, sizes: Any) -> list[torch.Tensor]:
    everyone, _ = _gathered(name, inputs, (root,), members, sizes)
    return everyone[root]


_COLLECTIVES: dict[Any, Callable[..., Any]] = {
    ops.all_gather: _all_gather,
    ops.all_reduce: _all_reduce,
    ops.all_to_all: _all_to_all,
    ops.broadcast: _broadcast,
    ops.collective_permute: _collective_permute,
    ops.reduce_scatter: _reduce_scatter,
}
