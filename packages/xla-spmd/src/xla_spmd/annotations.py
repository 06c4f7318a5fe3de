"""What the user said of how a tensor lies: marking, asking, taking back (api.md S01, S02, S20)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jax.sharding import NamedSharding

import torch_xla.runtime as xr
from xla_core import abi
from xla_spmd.axes import named_sharding, order_of_programs
from xla_spmd.errors import AnnotationError, DeviceCountError
from xla_spmd.mesh import Mesh
from xla_spmd.op_sharding import MANUAL, OpSharding, ShardingType
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor


@dataclass(frozen=True, slots=True)
class Annotation:
    """A sharding, and the mesh and spec that it was made of, where it was."""

    sharding: OpSharding
    mesh: Mesh | None = None
    spec: PartitionSpec | None = None


def annotation_of(t: torch.Tensor) -> Annotation | None:
    """What was said of a tensor on `xla`; None if nothing was."""
    inner = unwrap_sharded_tensor(t)
    if abi.is_manual(inner):
        return Annotation(MANUAL)
    layout = abi.layout(inner)
    return layout.note if layout is not None and isinstance(layout.note, Annotation) else None


def sharding_text(t: torch.Tensor) -> str:
    """The text of a tensor's sharding, such as `{devices=[2,1]0,1}`; `''` if nothing was said of it."""
    found = annotation_of(t)
    return "" if found is None else found.sharding.text


def check_mode(what: str) -> None:
    """Raise AnnotationError (a RuntimeError) outside SPMD mode."""
    if not xr.is_spmd():
        raise AnnotationError(f"{what} needs SPMD mode: call torch_xla.runtime.use_spmd() at the start of the program")


def check_mesh(mesh: Mesh) -> None:
    """Raise DeviceCountError (an AssertionError) for a mesh that is not over all devices of the job."""
    count = int(xr.global_runtime_device_count())
    if mesh.size() != count:
        raise DeviceCountError(f"the mesh of shape {mesh.mesh_shape} is over {mesh.size()} devices, the job has {count}")


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec, use_dynamo_custom_op: bool = False) -> XLAShardedTensor:
    """Divide `t` over the mesh, in place; returns a wrapper of it.

    partition_spec: for each dimension of `t` the mesh axis (index or name) that splits it, a tuple of axes, or None.
    Raises AssertionError for a mesh that is not over all devices or a spec that does not fit `t`, RuntimeError outside SPMD mode, for
    a tensor that is not on `xla`, and for data that lies otherwise already.
    """
    check_mode("mark_sharding")
    check_mesh(mesh)
    spec = tuple(partition_spec)
    if len(spec) != t.dim():
        raise DeviceCountError(f"the partition spec {partition_spec} has {len(spec)} entries, the tensor of shape {tuple(t.shape)} {t.dim()}")
    annotate(t, Annotation(mesh.get_op_sharding(spec), mesh, spec))
    return wrap_as_sharded_tensor(t)


def annotate(t: torch.Tensor, wanted: Annotation) -> None:
    """Let a tensor lie so. Raises AnnotationError if its data lies otherwise already."""
    inner = unwrap_sharded_tensor(t)
    before = annotation_of(inner) if inner.device.type == "xla" else None
    if before is not None and before.sharding != wanted.sharding and before.sharding.effective_type is not ShardingType.REPLICATED:
        if not abi.is_pending(inner):
            raise AnnotationError(
                f"the tensor of shape {tuple(t.shape)} lies as {before.sharding} already, not as {wanted.sharding}: "
                "call torch_xla.distributed.spmd.clear_sharding on it first"
            )
    elif before is not None and before.sharding == wanted.sharding and not abi.is_pending(inner):
        return
    abi.lay_out(inner, _for_programs(wanted), wanted)


def _for_programs(wanted: Annotation) -> NamedSharding:
    """The sharding in the order of devices in which programs run: the first mesh decides it.

    Of a sharding that is only possible in another order, values are right and the text is kept, but every device holds all.
    """
    mesh = wanted.mesh
    if mesh is not None and not abi.any_layout() and order_of_programs().tolist() != mesh.device_ids.tolist():
        place = {device: number for number, device in enumerate(order_of_programs().tolist())}
        abi.order_devices([place[device] for device in mesh.device_ids.tolist()])
    found = named_sharding(wanted.sharding)
    if found is None:
        whole = OpSharding((), (), (), ShardingType.REPLICATED)  # type: ignore[arg-type]
        found = named_sharding(whole)
    if found is None:
        raise AnnotationError(f"no program can hold the sharding {wanted.sharding}")
    return found


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Take back what was said of how `t` lies, in place; returns the plain tensor."""
    inner = unwrap_sharded_tensor(t)
    abi.lay_out(inner, None)
    return inner


def wrap_if_sharded(x: object) -> object:
    """A wrapper of an `xla` tensor of which a sharding was told; anything else as it is."""
    if isinstance(x, torch.Tensor) and not isinstance(x, XLAShardedTensor) and isinstance(x, abi.XLATensor):
        return x if annotation_of(x) is None else wrap_as_sharded_tensor(x)
    return x
