"""Sharding annotations of tensors, and the shardings that programs hold for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jax.sharding import NamedSharding

from xla_core.abi.process import XlaError, order_devices
from xla_core.abi.sharding import is_manual, set_sharding, sharding_of
from xla_core.abi.tensors import is_pending
from xla_spmd.errors import AnnotationError
from xla_spmd.mesh import Mesh
from xla_spmd.named_sharding import device_order, named_sharding, replicated
from xla_spmd.op_sharding import MANUAL, OpSharding, ShardingType
from xla_spmd.specs import PartitionSpec


@dataclass(frozen=True, slots=True)
class Annotation:
    """A sharding, and the mesh and spec that it was made of, where it was. by_policy: nobody asked for it, any other may take its place."""

    sharding: OpSharding
    mesh: Mesh | None = None
    spec: PartitionSpec | None = None
    by_policy: bool = False


def annotation_of(t: torch.Tensor) -> Annotation | None:
    """The annotation of a tensor on `xla`; None if it has none."""
    if is_manual(t):
        return Annotation(MANUAL)
    found = sharding_of(t)
    return found.note if found is not None and isinstance(found.note, Annotation) else None


def requested_annotation(t: torch.Tensor) -> Annotation | None:
    """The annotation of a tensor, if somebody asked for it; None for one that the policy gave."""
    found = annotation_of(t)
    return None if found is None or found.by_policy else found


def sharding_text(t: torch.Tensor) -> str:
    """The text of a tensor's sharding, such as `{devices=[2,1]0,1}`; `''` if it has none."""
    found = annotation_of(t)
    return "" if found is None else found.sharding.text


def check_not_manual(t: torch.Tensor) -> None:
    """Raise AnnotationError (a RuntimeError) for one device's shard, in a manual region."""
    if is_manual(t):
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is a shard, in a manual region: call disable_manual_sharding first")


def annotate(t: torch.Tensor, wanted: Annotation) -> None:
    """Set the sharding of a tensor. Raises AnnotationError if it is sharded otherwise already, or is a shard, in a manual region."""
    check_not_manual(t)
    before = requested_annotation(t)
    if before is not None and before.sharding != wanted.sharding and before.sharding.effective_type is not ShardingType.REPLICATED:
        if not is_pending(t):
            raise AnnotationError(
                f"the tensor of shape {tuple(t.shape)} is sharded as {before.sharding} already, not as {wanted.sharding}: "
                "call torch_xla.distributed.spmd.clear_sharding on it first"
            )
    elif before is not None and before.sharding == wanted.sharding and not is_pending(t):
        return
    set_sharding(t, sharding_for_programs(wanted), wanted)


def sharding_for_programs(wanted: Annotation) -> NamedSharding:
    """The sharding for programs. If it needs another order of devices than theirs, the first one may choose it.

    For a later one that does, values are right and the text is kept, but the data is replicated.
    """
    found = named_sharding(wanted.sharding)
    if found is not None:
        return found
    try:
        order_devices(np.argsort(device_order())[wanted.sharding.tiles.reshape(-1)].tolist())
    except XlaError:  # other tensors are sharded over the devices in the present order
        return replicated()
    return named_sharding(wanted.sharding) or replicated()
