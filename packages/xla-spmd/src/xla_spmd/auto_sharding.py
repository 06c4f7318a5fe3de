"""Choose shardings without annotations: for a tensor that moves to `xla`, and for the parameters of a module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from xla_core.abi.sharding import Sharding
from xla_spmd.annotations import Annotation, sharding_for_programs
from xla_spmd.mesh import Mesh
from xla_spmd.named_sharding import device_order
from xla_spmd.specs import PartitionSpec


def sharding_of_upload(tensor: torch.Tensor) -> Sharding | None:
    """The sharding over all devices for a tensor that moves to `xla`; None for replicated.

    A parameter is sharded along its largest dimension that the devices divide evenly, as FSDP stores it; anything else along dimension 0,
    as batches are, if they divide that.
    """
    mesh = whole_mesh()
    dim = largest_even_dim(tensor.shape if isinstance(tensor, nn.Parameter) else tensor.shape[:1], mesh.size())
    if dim is None:
        return None
    spec = along(dim, tensor.dim(), 0)
    note = Annotation(mesh.get_op_sharding(spec), mesh, spec, by_policy=True)
    return Sharding(sharding_for_programs(note), note)


def whole_mesh() -> Mesh:
    """All devices in one axis, in the order in which programs run over them."""
    order = device_order()
    return Mesh(order, order.shape)


def largest_even_dim(shape: Sequence[int], count: int) -> int | None:
    """The largest dimension that `count` shards divide evenly, the first of equal ones; None if there is none."""
    even = [dim for dim, size in enumerate(shape) if size and size % count == 0]
    return max(even, key=shape.__getitem__, default=None)


def along(dim: int | None, rank: int, axis: int | tuple[int, ...]) -> PartitionSpec:
    """The spec that shards dimension `dim` of a tensor of `rank` dimensions on mesh axis `axis`; dim None: replicated."""
    return tuple([axis if index == dim else None for index in range(rank)])
