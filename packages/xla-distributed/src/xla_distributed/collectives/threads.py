"""Exchange tensors among replicas that are threads of one process.

A process cannot run one program for several of its devices while each has its own pending graph. So a collective among threads first
runs what is pending on each device, exchanges the values, and is then recorded like any operation on what arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core.abi.tensors import buffer_of, sync
from xla_distributed.job import thread_replicas

Tensors = Sequence[torch.Tensor]
TensorsByMember = list[list[torch.Tensor]]


def gathered(
    name: str, tensors: Tensors, rest: Sequence[Any], members: Sequence[int] = (), sizes: Sequence[int] = ()
) -> tuple[TensorsByMember, int]:
    """The tensors of each member of this thread's group, on this thread's device, and its position in the group."""
    shapes = ", ".join(f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors)
    description = f"{name}({', '.join([shapes, *map(str, rest)])}; groups {list(members)} of {list(sizes)})"
    device = tensors[0].device
    payload = [tensor.clone() for tensor in tensors]  # the sender may write to its own while others read
    sync(device)
    for tensor in payload:
        buffer_of(tensor)  # others hold it for a while: never donated, so that the next program is the same however long that is
    by_ordinal = thread_replicas.exchange(description, payload)
    group = _own_group(list(members), list(sizes)) or range(len(by_ordinal))
    return [[tensor.to(device) for tensor in by_ordinal[member]] for member in group], group.index(thread_replicas.ordinal())


def _own_group(members: list[int], sizes: list[int]) -> list[int] | None:
    start = 0
    for size in sizes:
        group = members[start : start + size]
        if thread_replicas.ordinal() in group:
            return group
        start += size
    return None
