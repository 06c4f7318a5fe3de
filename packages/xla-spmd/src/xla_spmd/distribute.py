"""`torch.distributed.tensor`'s way to shard tensors and modules, over an `xla` mesh."""

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

from xla_core.abi.budgets import budget
from xla_core.abi.deprecations import Deprecation
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
    """`tensor` sharded over the mesh: in place if it is on `xla`, else a new leaf of which each device gets its shard.

    placements: for each mesh axis Shard or Replicate; None: replicated. Raises ValueError for other placements, and as `mark_sharding`.
    """
    mesh, spec = placed(tensor, device_mesh, placements)
    if tensor.is_meta:
        raise AnnotationError("a tensor on the meta device has no data to shard: make it on the CPU or on xla first")
    if tensor.device.type == "xla":
        found = mark_sharding(tensor, mesh, spec)
        if tensor.is_leaf and not isinstance(tensor, XLAShardedTensor):  # as the leaf that the tensor is
            found = XLAShardedTensor(tensor)
    else:
        found = XLAShardedTensor(_upload(tensor, mesh, spec))
        found.requires_grad_(tensor.requires_grad)
    return wrap_over(device_mesh, found, device_mesh.shape, spec)


def _upload(tensor: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    return ShardingSpec(mesh, spec).upload(tensor.detach().cpu())


def place(tensor: torch.Tensor, device_mesh: AnyMesh, placements: Sequence[Placement] | None) -> XLAShardedTensor:
    """A new tensor with the data of one on `xla`, and these placements; gradients flow back. Raises as `xla_distribute_tensor`.

    On a slice of a mesh nothing is said about its other axes: what is sharded over them stays so.
    """
    mesh, spec = placed(tensor, device_mesh, placements)
    annotation = annotation_of(unwrap_sharded_tensor(tensor))
    if mesh.ndim == device_mesh.ndim:
        found = mark_sharding_with_gradients(tensor, mesh, spec)
    elif annotation is None and all(entry is None for entry in spec):
        found = tensor.view_as(tensor)
    else:
        over = _with_other_axes(annotation, device_mesh, spec)
        found = constrain_dimensions(tensor, mesh, spec) if over is None else mark_sharding_with_gradients(tensor, *over)
    return wrap_over(device_mesh, found, device_mesh.shape, spec)


def _with_other_axes(annotation: Annotation | None, device_mesh: AnyMesh, spec: PartitionSpec) -> tuple[Mesh, PartitionSpec] | None:
    """The mesh and spec that an annotated tensor gets if a slice of its mesh is placed by `spec`; None if the slice is of another mesh."""
    if annotation is None or annotation.mesh is None or annotation.spec is None:
        return None
    axes = axes_in(device_mesh, annotation.mesh)
    if axes is None:
        return None
    wanted = axes_by_dimension(as_mesh(device_mesh), spec)
    present = axes_by_dimension(annotation.mesh, annotation.spec)
    kept = [[axis for axis in split if axis not in axes] for split in present]
    return annotation.mesh, spec_from_axes([[*old, *(axes[axis] for axis in new)] for old, new in zip(kept, wanted, strict=True)])


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
    moved = tensor if backward_dtype is None else _GradientIn.apply(tensor, backward_dtype)  # type: ignore[no-untyped-call]
    return place(moved if forward_dtype is None else moved.to(forward_dtype), mesh, placements)


class _GradientIn(torch.autograd.Function):
    """The tensor itself, whose gradient is rounded to another dtype on its way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The tensor."""
        ctx.dtypes = dtype, tensor.dtype
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient, in the dtype of the tensor again."""
        passing, own = ctx.dtypes
        return grad.to(passing).to(own), None


def to_local(tensor: XLAShardedTensor) -> torch.Tensor:
    """As `XLAShardedTensor.to_local`."""
    found: torch.Tensor = Unwrapping.apply(tensor)  # type: ignore[no-untyped-call]
    return found


def full_tensor(tensor: XLAShardedTensor) -> torch.Tensor:
    """As `XLAShardedTensor.full_tensor`."""
    mesh = as_mesh(mesh_and_spec(tensor)[0])
    return mark_sharding_with_gradients(tensor, mesh, (None,) * tensor.dim())


@budget()
def with_xla(func: Callable[..., Any]) -> Callable[..., Any]:
    """`func`, which switches the process to SPMD mode before it runs, if nobody did: a decorator for programs and tests."""

    @functools.wraps(func)
    def in_spmd_mode(*args: Any, **kwargs: Any) -> Any:
        if not is_spmd():
            use_spmd()
        return func(*args, **kwargs)

    return in_spmd_mode


@budget()
def auto_policy(mod_name: str, mod: nn.Module, device_mesh: AnyMesh) -> None:
    """A partition_fn that shards each parameter over the whole mesh, along its largest dimension that is evenly divisible, if one is."""
    mesh = as_mesh(device_mesh)
    axes = tuple(range(device_mesh.ndim))
    # A list: parameters are replaced on the way.
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
    # Both first: a function with other parameters leaves the module as it is.
    before = _input_hook(input_fn, mesh)
    after = _output_hook(output_fn, mesh)
    # Before anything is replaced: afterwards the names of one parameter lead to several.
    shared = _Shared(module)
    for name, submodule in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, submodule, mesh)
        _replicate(submodule, as_mesh(mesh))
    shared.tie()
    if before is not None:
        module.register_forward_pre_hook(before)
    if after is not None:
        module.register_forward_hook(after)
    module._distribute_module_applied = True  # type: ignore[assignment]
    return module


class _Shared:
    """Parameters that a module has under several names."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        names: dict[int, list[str]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        self._names = [group for group in names.values() if len(group) > 1]

    def tie(self) -> None:
        """Let all names stand for what the first one stands for now."""
        for first, *others in self._names:
            parameter = self._module.get_parameter(first)
            for name in others:
                path, _, attribute = name.rpartition(".")
                setattr(self._module.get_submodule(path), attribute, parameter)


def _replicate(module: nn.Module, mesh: Mesh) -> None:
    """Move to `xla` what is not there yet, replicated."""
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        if tensor.device.type != "xla":
            _shard_tensor(module, name, tensor, mesh, (None,) * tensor.dim())


def _whole_mesh() -> DeviceMesh:
    return DeviceMesh("xla", list(range(device_count())))


def _takes(function: Callable[..., Any], what: str) -> int:
    count = len(inspect.signature(function).parameters)
    if count == 2:
        warnings.warn(_TWO_PARAMETERS.message, FutureWarning, stacklevel=4)
    elif count != 3:
        raise PartitionSpecError(f"{what} takes (module, {what.partition('_')[0]}s, device_mesh), this one has {count} parameters")
    return count


def _input_hook(function: Callable[..., Any] | None, mesh: AnyMesh) -> Callable[..., Any] | None:
    if function is None:
        return None
    if _takes(function, "input_fn") == 2:
        return _untraced(lambda module, inputs: function(inputs, mesh))
    return _untraced(lambda module, inputs: function(module, inputs, mesh))


def _output_hook(function: Callable[..., Any] | None, mesh: AnyMesh) -> Callable[..., Any] | None:
    if function is None:
        return None
    if _takes(function, "output_fn") == 2:
        return _untraced(lambda module, inputs, outputs: function(_wrapped(outputs, mesh), mesh))
    return _untraced(lambda module, inputs, outputs: function(module, _wrapped(outputs, mesh), mesh))


def _wrapped(outputs: Any, mesh: AnyMesh) -> Any:
    """Outputs with wrappers of the tensors on `xla`: those of parameters that were marked in place are plain, as is what is compiled."""
    return tree_map(lambda found: wrap_over(mesh, found) if tensor_behind(found) is not None else found, outputs)


def _untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, which torch.compile calls and does not trace: traced tensors have no placements."""
    found: Callable[..., Any] = torch.compiler.disable(hook)
    return found
