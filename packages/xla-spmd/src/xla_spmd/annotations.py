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
from xla_spmd.named_sharding import device_order, in_own_order, named_sharding
from xla_spmd.op_sharding import MANUAL, OpSharding, ShardingType
from xla_spmd.specs import PartitionSpec


@dataclass(frozen=True, slots=True)
class Annotation:
    """A sharding, and the mesh and spec that it was made from, if known. by_policy: nobody asked for it, any other may replace it."""

    sharding: OpSharding
    mesh: Mesh | None = None
    spec: PartitionSpec | None = None
    by_policy: bool = False


def annotation_of(t: torch.Tensor) -> Annotation | None:
    """The annotation of a tensor on `xla`; None if it has none."""
    if is_manual(t):
        return Annotation(MANUAL)
    sharding = sharding_of(t)
    return sharding.note if sharding is not None and isinstance(sharding.note, Annotation) else None


def requested_annotation(t: torch.Tensor) -> Annotation | None:
    """The annotation of a tensor, if somebody asked for it; None for one that the policy gave."""
    annotation = annotation_of(t)
    return None if annotation is None or annotation.by_policy else annotation


def sharding_text(t: torch.Tensor) -> str:
    """HLO's text of a tensor's sharding, such as `{devices=[2,1]0,1}`; `''` if it has none."""
    annotation = annotation_of(t)
    return "" if annotation is None else annotation.sharding.text


def check_not_manual(t: torch.Tensor) -> None:
    """Raise AnnotationError (a RuntimeError) for one device's shard, in a manual region."""
    if is_manual(t):
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is a shard, in a manual region: call disable_manual_sharding first")


def annotate(t: torch.Tensor, annotation: Annotation) -> None:
    """Set the sharding of a tensor. Raises AnnotationError if it is sharded otherwise already, or is a shard, in a manual region."""
    check_not_manual(t)
    before = requested_annotation(t)
    if before is not None and before.sharding != annotation.sharding and before.sharding.effective_type is not ShardingType.REPLICATED:
        if not is_pending(t):
            raise AnnotationError(
                f"the tensor of shape {tuple(t.shape)} is sharded as {before.sharding} already, not as {annotation.sharding}: "
                "call torch_xla.distributed.spmd.clear_sharding on it first"
            )
    elif before is not None and before.sharding == annotation.sharding and not is_pending(t):
        return
    set_sharding(t, sharding_for_programs(annotation), annotation)


def sharding_for_programs(annotation: Annotation) -> NamedSharding:
    """The JAX sharding of an annotation. The first one that needs another order of devices sets the order of all programs.

    A later one that needs yet another keeps its own order, and programs move its shards.
    """
    sharding = named_sharding(annotation.sharding)
    if sharding is not None:
        return sharding
    try:
        order_devices(np.argsort(device_order())[annotation.sharding.tiles.reshape(-1)].tolist())
    except XlaError:  # other tensors are sharded over the devices in the present order
        return in_own_order(annotation.sharding)
    return named_sharding(annotation.sharding) or in_own_order(annotation.sharding)
