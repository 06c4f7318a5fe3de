"""Exchange tensors of different sizes by collectives over equal sizes: pad them before, cut them after."""

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
    largest = max(shape.numel() for shape in shapes)
    gathered = xm.all_gather(padded(tensor, largest).unsqueeze(0), groups=groups, pin_layout=False)
    return [part[: shape.numel()].reshape(shape) for part, shape in zip(gathered.unbind(0), shapes, strict=True)]


def scatter_unlike(tensors: Tensors, position: int, reduce_type: str, scale: float, groups: ReplicaGroups) -> torch.Tensor:
    """The reduction of tensor `place` over all members, which bring lists of the same shapes."""
    largest = max(tensor.numel() for tensor in tensors)
    flat = torch.cat([padded(tensor, largest) for tensor in tensors])
    own_part: torch.Tensor = xm.reduce_scatter(reduce_type, flat, scale, 0, len(tensors), groups=groups, pin_layout=False)
    shape = tensors[position].shape
    return own_part[: shape.numel()].reshape(shape)


def exchange_unlike(
    parts: Tensors, expected: Sequence[int], exchange: Callable[[str, Any], list[Any]], groups: ReplicaGroups
) -> list[torch.Tensor]:
    """Send `parts[j]` to member j; return what each member sends to this one, flat, in the order of the ranks.

    expected: the elements that are to come from each; exchange: `Mailbox.exchange`, as no member knows the sizes of all.
    Raises RuntimeError, on all members, if one sends what another one does not expect.
    """
    sizes = [part.numel() for part in parts]
    declared = exchange("all_to_all", {"sends": sizes, "expects": list(expected)})
    for sender, sent in enumerate(declared):
        for receiver, received_by in enumerate(declared):
            if sent["sends"][receiver] != received_by["expects"][sender]:
                raise RuntimeError(
                    f"all_to_all: rank {sender} sends {sent['sends'][receiver]} elements to rank {receiver}, "
                    f"which expects {received_by['expects'][sender]}"
                )
    largest = max(max(sent["sends"]) for sent in declared)
    # One program for many sizes, since they may change from call to call.
    largest = largest if all(size == largest for sent in declared for size in sent["sends"]) else 1 << (largest - 1).bit_length()
    stacked = torch.stack([padded(part, largest) for part in parts])
    received = xm.all_to_all(stacked, 0, 0, len(parts), groups=groups, pin_layout=False)
    return [part[:size] for part, size in zip(received.unbind(0), expected, strict=True)]
