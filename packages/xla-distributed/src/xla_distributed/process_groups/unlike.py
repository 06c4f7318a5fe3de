"""Exchange tensors of several sizes by collectives of equal ones: padded on the way, cut where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import ReplicaGroups

Tensors = Sequence[torch.Tensor]


def padded(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """The tensor in one dimension, with zeros behind it up to `size` elements."""
    flat = tensor.reshape(-1)
    return flat if flat.numel() == size else torch.cat([flat, flat.new_zeros(size - flat.numel())])


def gather_unlike(tensor: torch.Tensor, shapes: Sequence[torch.Size], groups: ReplicaGroups) -> list[torch.Tensor]:
    """The tensors of all members, of these shapes in the order of the ranks."""
    most = max(shape.numel() for shape in shapes)
    gathered = xm.all_gather(padded(tensor, most).unsqueeze(0), groups=groups, pin_layout=False)
    return [part[: shape.numel()].reshape(shape) for part, shape in zip(gathered.unbind(0), shapes, strict=True)]


def scatter_unlike(tensors: Tensors, place: int, reduce_type: str, scale: float, groups: ReplicaGroups) -> torch.Tensor:
    """The reduction of tensor `place` over all members, which bring lists of the same shapes."""
    most = max(tensor.numel() for tensor in tensors)
    flat = torch.cat([padded(tensor, most) for tensor in tensors])
    mine: torch.Tensor = xm.reduce_scatter(reduce_type, flat, scale, 0, len(tensors), groups=groups, pin_layout=False)
    wanted = tensors[place].shape
    return mine[: wanted.numel()].reshape(wanted)


def exchange_unlike(
    parts: Tensors, expected: Sequence[int], exchange: Callable[[str, Any], list[Any]], groups: ReplicaGroups
) -> list[torch.Tensor]:
    """What each member sends to this one, flat, in the order of the ranks; `parts` go to each.

    expected: the elements that are to come from each; exchange: `Mailbox.exchange`, as no member knows the sizes of all.
    Raises RuntimeError, on all members, if one sends what another one does not expect.
    """
    sizes = [part.numel() for part in parts]
    told = exchange("all_to_all", {"sends": sizes, "expects": list(expected)})
    for sender, its in enumerate(told):
        for receiver, other in enumerate(told):
            if its["sends"][receiver] != other["expects"][sender]:
                raise RuntimeError(
                    f"all_to_all: rank {sender} sends {its['sends'][receiver]} elements to rank {receiver}, "
                    f"which expects {other['expects'][sender]}"
                )
    most = max(max(its["sends"]) for its in told)
    # One program for many sizes, where these change from call to call.
    most = most if all(size == most for its in told for size in its["sends"]) else 1 << (most - 1).bit_length()
    stacked = torch.stack([padded(part, most) for part in parts])
    received = xm.all_to_all(stacked, 0, 0, len(parts), groups=groups, pin_layout=False)
    return [part[:size] for part, size in zip(received.unbind(0), expected, strict=True)]
