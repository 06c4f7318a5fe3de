"""Shard tensors and modules over an `xla` mesh through the API of `torch.distributed.tensor`."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

from xla_core.abi.declarations import Deprecation, budget
from xla_core.abi.job import device_count, is_spmd, use_spmd
from xla_core.abi.tensors import tensor_behind
from xla_spmd._compat import tree_map
from xla_spmd.annotations import Annotation, annotation_of
from xla_spmd.auto_sharding import along, largest_even_dim
from xla_spmd.constraints import mark_sharding_with_gradients
from xla_spmd.errors import AnnotationError, PartitionSpecError
from xla_spmd.free_axes import constrain_dimensions
from xla_spmd.inputs import ShardingSpec
from xla_spmd.marking import mark_sharding
from xla_spmd.mesh import AnyMesh, Mesh, as_mesh
from xla_spmd.placements import axes_by_dimension, axes_in, mesh_and_spec, placed, spec_from_axes
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import Unwrapping, XLAShardedTensor, unwrap_sharded_tensor, wrap_over

PartitionFunction = Callable[[str, nn.Module, Any], Any]

_TWO_PARAMETERS = Deprecation(
    "an input_fn or output_fn of xla_distribute_module with two parameters",
    "one that takes (module, inputs or outputs, device_mesh)",
    "xla-spmd 0.2.0",
    "2027-06",
)


@budget(compiles=None)
def xla_distribute_tensor(tensor: torch.Tensor, device_mesh: AnyMesh, placements: Sequence[Placement] | None = None) -> XLAShardedTensor:
    """Shard `tensor` over the mesh: in place if it is on `xla`, else as a new leaf of which each device gets its shard.

    placements: for each mesh axis Shard or Replicate; None: replicated. Raises ValueError for other placements, and as `mark_sharding`.
    """
    mesh, spec = placed(tensor, device_mesh, placements)
    if tensor.is_meta:
        raise AnnotationError("a tensor on the meta device has no data to shard: make it on the CPU or on xla first")
    if tensor.device.type == "xla":
        sharded = mark_sharding(tensor, mesh, spec)
        if tensor.is_leaf and not isinstance(tensor, XLAShardedTensor):  # as the leaf that the tensor is
            sharded = XLAShardedTensor(tensor)
    else:
        sharded = XLAShardedTensor(_upload(tensor, mesh, spec))
        sharded.requires_grad_(tensor.requires_grad)
    return wrap_over(device_mesh, sharded, device_mesh.shape, spec)


def _upload(tensor: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    return ShardingSpec(mesh, spec).upload(tensor.detach().cpu())


def place(tensor: torch.Tensor, device_mesh: AnyMesh, placements: Sequence[Placement] | None) -> XLAShardedTensor:
    """Copy a tensor on `xla` with these placements; gradients flow back. Raises as `xla_distribute_tensor`.

    On a slice of a mesh, what is sharded over the other axes of the mesh stays sharded over them.
    """
    mesh, spec = placed(tensor, device_mesh, placements)
    annotation = annotation_of(unwrap_sharded_tensor(tensor))
    if mesh.ndim == device_mesh.ndim:
        result = mark_sharding_with_gradients(tensor, mesh, spec)
    elif annotation is None and all(entry is None for entry in spec):
        result = tensor.view_as(tensor)
    else:
        extended = _with_other_axes(annotation, device_mesh, spec)
        result = constrain_dimensions(tensor, mesh, spec) if extended is None else mark_sharding_with_gradients(tensor, *extended)
    return wrap_over(device_mesh, result, device_mesh.shape, spec)


def _with_other_axes(annotation: Annotation | None, device_mesh: AnyMesh, spec: PartitionSpec) -> tuple[Mesh, PartitionSpec] | None:
    """The mesh and spec of an annotated tensor once `spec` places it on a slice of its mesh; None if the slice is of another mesh."""
    if annotation is None or annotation.mesh is None or annotation.spec is None:
        return None
    axes = axes_in(device_mesh, annotation.mesh)
    if axes is None:
        return None
    requested = axes_by_dimension(as_mesh(device_mesh), spec)
    present = axes_by_dimension(annotation.mesh, annotation.spec)
    kept = [[axis for axis in split if axis not in axes] for split in present]
    return annotation.mesh, spec_from_axes([[*old, *(axes[axis] for axis in new)] for old, new in zip(kept, requested, strict=True)])


def redistribute(
    tensor: XLAShardedTensor,
    device_mesh: AnyMesh | None,
    placements: Sequence[Placement] | None,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> XLAShardedTensor:
    """As `XLAShardedTensor.redistribute`."""
    if placements is None:
        raise AnnotationError("redistribute needs placements: one for each axis of the mesh")
    mesh = mesh_and_spec(tensor)[0] if device_mesh is None else device_mesh
    moved = tensor if backward_dtype is None else _RoundGradient.apply(tensor, backward_dtype)  # type: ignore[no-untyped-call]
    return place(moved if forward_dtype is None else moved.to(forward_dtype), mesh, placements)


class _RoundGradient(torch.autograd.Function):
    """Return the tensor itself, and round its gradient to another dtype on the way back."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor."""
        ctx.dtypes = dtype, tensor.dtype
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient, in the dtype of the tensor again."""
        rounding_dtype, tensor_dtype = ctx.dtypes
        return grad.to(rounding_dtype).to(tensor_dtype), None


def to_local(tensor: XLAShardedTensor) -> torch.Tensor:
    """As `XLAShardedTensor.to_local`."""
    plain: torch.Tensor = Unwrapping.apply(tensor)  # type: ignore[no-untyped-call]
    return plain


def full_tensor(tensor: XLAShardedTensor) -> torch.Tensor:
    """As `XLAShardedTensor.full_tensor`."""
    mesh = as_mesh(mesh_and_spec(tensor)[0])
    return mark_sharding_with_gradients(tensor, mesh, (None,) * tensor.dim())


@budget()
def with_xla(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `func` to switch the process to SPMD mode before it runs, unless it is in it already; for programs and tests."""

    @functools.wraps(func)
    def in_spmd_mode(*args: Any, **kwargs: Any) -> Any:
        if not is_spmd():
            use_spmd()
        return func(*args, **kwargs)

    return in_spmd_mode


@budget()
def auto_policy(mod_name: str, mod: nn.Module, device_mesh: AnyMesh) -> None:
    """Shard each parameter over all devices of the mesh, along its largest evenly divisible dimension if it has one: a partition_fn."""
    mesh = as_mesh(device_mesh)
    axes = tuple(range(device_mesh.ndim))
    # A list, since the loop replaces parameters.
    for name, parameter in list(mod.named_parameters(recurse=False)):
        dim = largest_even_dim(parameter.shape, device_mesh.size())
        _shard_tensor(mod, name, parameter, mesh, along(dim, parameter.dim(), axes))


def _shard_tensor(module: nn.Module, name: str, tensor: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> None:
    """Shard a parameter or buffer: in place on `xla`, else a new one takes its place."""
    if tensor.device.type == "xla":
        mark_sharding(tensor, mesh, spec)
        return
    moved = _upload(tensor, mesh, spec)
    setattr(module, name, nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved)


@budget(compiles=None)
def xla_distribute_module(
    module: nn.Module,
    device_mesh: AnyMesh | None = None,
    partition_fn: PartitionFunction | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> nn.Module:
    """Shard the parameters of `module` by `partition_fn(name, submodule, device_mesh)`, called for each submodule; others are replicated.

    Tensors that are not on `xla` yet are replaced by ones that are; a parameter that several modules share stays one.
    device_mesh: None for one axis over all devices. input_fn, output_fn: called with (module, inputs or outputs, device_mesh).
    Raises RuntimeError for a module that went through this before, ValueError for functions with other parameters.
    """
    if getattr(module, "_distribute_module_applied", False):
        raise AnnotationError("this module is distributed already: distribute_module is called once for a module")
    mesh = _whole_mesh() if device_mesh is None else device_mesh
    # Check both first, so that a function with other parameters leaves the module as it is.
    pre_hook = _input_hook(input_fn, mesh)
    post_hook = _output_hook(output_fn, mesh)
    # Before anything is replaced: afterwards the names of one parameter stand for several.
    tied = _TiedParameters(module)
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
        _replicate(submodule, as_mesh(mesh))
    tied.tie()
    if pre_hook is not None:
        module.register_forward_pre_hook(pre_hook)
    if post_hook is not None:
        module.register_forward_hook(post_hook)
    module._distribute_module_applied = True  # type: ignore[assignment]
    return module


class _TiedParameters:
    """Parameters that a module has under several names."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        self._names = [group for group in names.values() if len(group) > 1]

    def tie(self) -> None:
        """Set each of the names of a parameter to what the first of them stands for now."""
        for first, *others in self._names:
            parameter = self._module.get_parameter(first)
            for name in others:
                path, _, attribute = name.rpartition(".")
                setattr(self._module.get_submodule(path), attribute, parameter)


def _replicate(module: nn.Module, mesh: Mesh) -> None:
    """Move parameters and buffers that are not on `xla` there, replicated."""
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        if tensor.device.type != "xla":
            _shard_tensor(module, name, tensor, mesh, (None,) * tensor.dim())


def _whole_mesh() -> DeviceMesh:
    return DeviceMesh("xla", list(range(device_count())))


def _parameter_count(function: Callable[..., Any], argument: str) -> int:
    count = len(inspect.signature(function).parameters)
    if count == 2:
        warnings.warn(_TWO_PARAMETERS.message, FutureWarning, stacklevel=4)
    elif count != 3:
        raise PartitionSpecError(f"{argument} takes (module, {argument.partition('_')[0]}s, device_mesh), this one has {count} parameters")
    return count


def _input_hook(function: Callable[..., Any] | None, mesh: AnyMesh) -> Callable[..., Any] | None:
    if function is None:
        return None
    if _parameter_count(function, "input_fn") == 2:
        return _untraced(lambda module, inputs: function(inputs, mesh))
    return _untraced(lambda module, inputs: function(module, inputs, mesh))


def _output_hook(function: Callable[..., Any] | None, mesh: AnyMesh) -> Callable[..., Any] | None:
    if function is None:
        return None
    if _parameter_count(function, "output_fn") == 2:
        return _untraced(lambda module, inputs, outputs: function(_wrapped(outputs, mesh), mesh))
    return _untraced(lambda module, inputs, outputs: function(module, _wrapped(outputs, mesh), mesh))


def _wrapped(outputs: Any, mesh: AnyMesh) -> Any:
    """Wrap the outputs that are tensors on `xla`: results of parameters marked in place are plain, as are those of compiled code."""
    return tree_map(lambda output: wrap_over(mesh, output) if tensor_behind(output) is not None else output, outputs)


def _untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Make torch.compile call the hook without tracing it: traced tensors have no placements."""
    untraced: Callable[..., Any] = torch.compiler.disable(hook)
    return untraced
