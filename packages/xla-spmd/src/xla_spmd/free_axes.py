"""Constrain a tensor along some mesh axes of a program, and leave its other dimensions to the compiler."""

from __future__ import annotations

import ast
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as JaxSpec

from xla_core.abi.operators import Context, OpSpec, register_op
from xla_spmd.errors import MeshError
from xla_spmd.marking import annotation_for
from xla_spmd.mesh import Mesh
from xla_spmd.named_sharding import named_sharding
from xla_spmd.specs import PartitionSpec

_NAME = "xla::constrain_dimensions"
_LIBRARY: Any = torch.library.Library("xla", "FRAGMENT")


def constrain_dimensions(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Copy `t`, and split the dimensions with an axis in the spec over that axis in the program; its gradient is split alike.

    Dimensions without one are split as the compiler likes, over other axes of the mesh. No annotation stays. Raises as `mark_sharding`.
    """
    annotation_for(t.shape, mesh, partition_spec)
    constrained: torch.Tensor = torch.ops.xla.constrain_dimensions(t, str(mesh), str(tuple(partition_spec)))
    return constrained


def _lower(context: Context, t: jax.Array, mesh: str, partition_spec: str) -> jax.Array:
    parsed_mesh = Mesh.from_str(mesh)
    if parsed_mesh is None:
        raise MeshError(f"{_NAME} takes the text of a mesh, as str(mesh) gives it, got {mesh!r}")
    named = named_sharding(annotation_for(t.shape, parsed_mesh, ast.literal_eval(partition_spec)).sharding)
    if named is None:  # it needs another order of devices than programs run in
        return t
    entries = [JaxSpec.UNCONSTRAINED if entry is None else entry for entry in named.spec]
    constrained: jax.Array = jax.lax.with_sharding_constraint(t, NamedSharding(named.mesh, JaxSpec(*entries)))
    return constrained


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.mesh, ctx.partition_spec = inputs[1:]


def _constrain_gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return torch.ops.xla.constrain_dimensions(grad, ctx.mesh, ctx.partition_spec), None, None


def _shape(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    return torch.empty_like(t, memory_format=torch.contiguous_format)


_LIBRARY.define("constrain_dimensions(Tensor t, str mesh, str partition_spec) -> Tensor")
_LIBRARY.impl("constrain_dimensions", _shape, "Meta")
torch.library.register_autograd(_NAME, _constrain_gradient, setup_context=_keep_arguments, lib=_LIBRARY)
register_op(OpSpec(_NAME, _lower))
