"""Sharding annotations of tensors, and the shardings that programs hold for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jax.sharding import NamedSharding

from xla_core import abi
from xla_spmd.axes import everywhere, named_sharding, order_of_programs
from xla_spmd.errors import AnnotationError
from xla_spmd.mesh import Mesh
from xla_spmd.op_sharding import MANUAL, OpSharding, ShardingType
from xla_spmd.specs import PartitionSpec


@dataclass(frozen=True, slots=True)
class Annotation:
    """A sharding, and the mesh and spec that it was made of, where it was."""

    sharding: OpSharding
    mesh: Mesh | None = None
    spec: PartitionSpec | None = None


def annotation_of(t: torch.Tensor) -> Annotation | None:
    """The annotation of a tensor on `xla`; None if it has none."""
    if abi.is_manual(t):
        return Annotation(MANUAL)
    layout = abi.layout(t)
    return layout.note if layout is not None and isinstance(layout.note, Annotation) else None


def sharding_text(t: torch.Tensor) -> str:
    """The text of a tensor's sharding, such as `{devices=[2,1]0,1}`; `''` if nothing was said of it."""
    found = annotation_of(t)
    return "" if found is None else found.sharding.text


def check_whole(t: torch.Tensor) -> None:
    """Raise AnnotationError (a RuntimeError) for one device's part, in a manual region."""
    if abi.is_manual(t):
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is a part, in a manual region: call disable_manual_sharding first")


def annotate(t: torch.Tensor, wanted: Annotation) -> None:
    """Let a tensor lie so. Raises AnnotationError if its data lies otherwise already, or if it is a part, in a manual region."""
    check_whole(t)
    before = annotation_of(t)
    if before is not None and before.sharding != wanted.sharding and before.sharding.effective_type is not ShardingType.REPLICATED:
        if not abi.is_pending(t):
            raise AnnotationError(
                f"the tensor of shape {tuple(t.shape)} lies as {before.sharding} already, not as {wanted.sharding}: "
                "call torch_xla.distributed.spmd.clear_sharding on it first"
            )
    elif before is not None and before.sharding == wanted.sharding and not abi.is_pending(t):
        return
    abi.lay_out(t, sharding_for_programs(wanted), wanted)


def sharding_for_programs(wanted: Annotation) -> NamedSharding:
    """The sharding for programs. If it needs another order of devices than theirs, the first one may choose it.

    Of a later one that does, values are right and the text is kept, but every device holds all.
    """
    found = named_sharding(wanted.sharding)
    if found is not None:
        return found
    try:
        abi.order_devices(np.argsort(order_of_programs())[wanted.sharding.tiles.reshape(-1)].tolist())
    except abi.ExecutionError:  # other tensors lie over the devices in the present order
        return everywhere()
    return named_sharding(wanted.sharding) or everywhere()
