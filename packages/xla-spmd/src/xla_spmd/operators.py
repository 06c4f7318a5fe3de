"""Operators of the namespace `xla` that graphs can hold: marking that torch.compile traces, linear layers as einsum."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from xla_core.abi.declarations import budget
from xla_spmd._compat import same_version
from xla_spmd.annotations import Annotation, annotate
from xla_spmd.errors import MeshError
from xla_spmd.marking import annotation_for, check_mode, clear_sharding, mark_sharding
from xla_spmd.mesh import Mesh
from xla_spmd.tensor import has_data, is_traced, unwrap_sharded_tensor

_LIBRARY: Any = torch.library.Library("xla", "FRAGMENT")
_MARK = "aot_mark_sharding"
_MARK_IN_PLACE = "dynamo_mark_sharding"
_LINEAR = "einsum_linear_forward"
_LINEAR_GRADIENTS = "einsum_linear_backward"


def constrained(t: torch.Tensor, annotation: Annotation) -> torch.Tensor:
    """A new tensor with the data of `t`, plain and without history, with this sharding. Raises AnnotationError outside SPMD mode."""
    check_mode("sharding a tensor")
    if annotation.mesh is not None and is_traced(t):
        traced: torch.Tensor = torch.ops.xla.aot_mark_sharding(t, str(annotation.mesh), str(annotation.spec))
        return traced
    fresh = clear_sharding(unwrap_sharded_tensor(t).detach().clone())
    annotate(fresh, annotation)
    return fresh


def _mark(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    """A new tensor with this sharding; a copy where there is no data to shard: while a graph is traced."""
    if not has_data(t):
        return t.clone()
    parsed = Mesh.from_str(mesh)
    if parsed is None:
        raise MeshError(f"{_MARK} takes the text of a mesh, as str(mesh) gives it, got {mesh!r}")
    return constrained(t, annotation_for(t.shape, parsed, ast.literal_eval(partition_spec)))


@budget()
def marked_without_values(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    """A tensor like what `aot_mark_sharding` gives, without its values."""
    return torch.empty_like(t)


def _keep_arguments(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.mesh, ctx.partition_spec = inputs[1:]


def _mark_gradient(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return torch.ops.xla.aot_mark_sharding(grad, ctx.mesh, ctx.partition_spec), None, None


def _mark_in_place(
    t: torch.Tensor, device_ids: Sequence[int], mesh_shape: Sequence[int], axis_names: str, partition_spec: str
) -> torch.Tensor:
    """`t`, annotated. In a graph that is traced, `t` is written to with the operator above, which makes no difference to autograd."""
    mesh = Mesh(device_ids, mesh_shape, ast.literal_eval(axis_names))
    if has_data(t):
        mark_sharding(t, mesh, ast.literal_eval(partition_spec))
        return t
    with torch.no_grad(), same_version(t):
        t.copy_(torch.ops.xla.aot_mark_sharding(t, str(mesh), partition_spec))
    return t


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The core records `linear` as one product over the last dimension; torch's own flattens the others."""
    if has_data(x):
        return torch.nn.functional.linear(x, weight, bias)
    product = torch.einsum("...n,mn->...m", x, weight)
    return product if bias is None else product + bias


def _linear_gradients(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, wanted: Sequence[bool]) -> list[torch.Tensor]:
    """The wanted gradients, of input, weight and bias."""
    if has_data(x):
        return [gradient for gradient in torch.ops.aten.linear_backward(x, grad, weight, list(wanted)) if gradient is not None]
    gradients = []
    if wanted[0]:
        gradients.append(torch.einsum("...m,mn->...n", grad, weight))
    if wanted[1]:
        gradients.append(torch.einsum("...m,...n->mn", grad, x))
    if wanted[2]:
        gradients.append(torch.einsum("...m->m", grad))
    return gradients


def _define(schema: str, kernel: Any, key: str = "CompositeExplicitAutograd") -> None:
    _LIBRARY.define(schema)
    _LIBRARY.impl(schema.partition("(")[0], kernel, key)


_define(f"{_MARK}(Tensor t, str mesh, str partition_spec) -> Tensor", _mark)
torch.library.register_autograd(f"xla::{_MARK}", _mark_gradient, setup_context=_keep_arguments, lib=_LIBRARY)
_define(
    f"{_MARK_IN_PLACE}(Tensor(a!) t, int[] device_ids, int[] mesh_shape, str axis_names, str partition_spec) -> Tensor(a!)",
    _mark_in_place,
    "CompositeImplicitAutograd",
)
_define(f"{_LINEAR}(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor", _linear)
_define(f"{_LINEAR_GRADIENTS}(Tensor grad, Tensor input, Tensor weight, bool[3] wanted) -> Tensor[]", _linear_gradients)
