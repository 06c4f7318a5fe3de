"""Let torch.distributed.tensor make sharded tensors instead of DTensors on a mesh of `xla` devices in SPMD mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Shard

from xla_core.abi.job import is_spmd, topology
from xla_core.abi.tensors import is_pending
from xla_spmd._compat import serve_dtensors, serve_local_map
from xla_spmd.annotations import annotation_of
from xla_spmd.distribute import full_tensor, place, redistribute, to_local, xla_distribute_tensor
from xla_spmd.errors import AnnotationError, PartitionSpecError
from xla_spmd.local_map import has_sharded, local_map
from xla_spmd.placements import device_mesh_of_tensor, placements_of, spec_of
from xla_spmd.tensor import XLAShardedTensor

# With the functions above, a `DTensorSupport`.
__all__ = ["device_mesh_of_tensor", "full_tensor", "placements_of", "redistribute", "spec_of", "to_local"]


def from_local(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int] | None = None
) -> XLAShardedTensor:
    """`DTensor.from_local`: a program for all devices has the whole tensor; gradients flow back.

    Raises ValueError for another `shape` than its own, and as `xla_distribute_tensor`; RuntimeError for what each of several processes may
    have uploaded by itself.
    """
    sharded = any(isinstance(placement, Shard) for placement in placements)
    if sharded and topology().process_count > 1 and not _made_by_the_program(tensor):
        raise AnnotationError(
            "DTensor.from_local makes no global tensor of the shards of several SPMD processes: upload them with "
            "torch_xla.distributed.spmd.ShardingSpec(mesh, spec, minibatch=True).upload(block)"
        )
    if shape is not None and tuple(shape) != tuple(tensor.shape):
        raise PartitionSpecError(
            f"one process runs for all devices, so that its tensor is the whole: shape {tuple(shape)} is not its {tuple(tensor.shape)}"
        )
    return place(tensor, device_mesh, placements)


def _made_by_the_program(tensor: torch.Tensor) -> bool:
    """Whether a tensor is surely the same in all processes: a result, or one that was sharded."""
    return isinstance(tensor, XLAShardedTensor) or is_pending(tensor) or annotation_of(tensor) is not None


def make(
    function: Callable[..., torch.Tensor],
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    requires_grad: bool = False,
    **options: Any,
) -> XLAShardedTensor:
    """`ones`, `zeros`, `empty`, `full`, `rand` and `randn` of torch.distributed.tensor. Raises as `xla_distribute_tensor`.

    function: torch's, called with the size and what is left of the options.
    """
    fill_values = [options.pop("fill_value")] if "fill_value" in options else []
    plain = function(tuple(size), *fill_values, device="xla", **options)
    sharded = xla_distribute_tensor(plain, device_mesh, placements)
    sharded.requires_grad_(requires_grad)
    return sharded


def _is_ours(mesh: Any) -> bool:
    return mesh.device_type == "xla" and is_spmd()


serve_dtensors(_is_ours, from_local, make)
serve_local_map(has_sharded, local_map)
