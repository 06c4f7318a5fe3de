"""`torch.distributed.tensor`'s way to shard tensors and modules, over an `xla` mesh."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement

import torch_xla.runtime as xr
from xla_spmd.auto_sharding import along, largest_even_dim
from xla_spmd.constraints import mark_sharding_with_gradients
from xla_spmd.errors import AnnotationError, PartitionSpecError
from xla_spmd.inputs import ShardingSpec
from xla_spmd.marking import mark_sharding
from xla_spmd.mesh import Mesh
from xla_spmd.placements import convert_to_xla_mesh, placed
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor

PartitionFunction = Callable[[str, nn.Module, DeviceMesh], Any]


def xla_distribute_tensor(tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> XLAShardedTensor:
    """`tensor` sharded over the mesh: in place if it is on `xla`, else a new leaf of which each device gets its shard.

    placements: for each mesh axis Shard or Replicate; None: replicated. Raises ValueError for other placements, and as `mark_sharding`.
    """
    mesh, spec = placed(tensor, device_mesh, placements)
    if tensor.device.type == "xla":
        inner = unwrap_sharded_tensor(tensor)
        return mark_sharding(inner, mesh, spec)
    if tensor.is_meta:
        raise AnnotationError("a tensor on the meta device has no data to shard: make it on the CPU or on xla first")
    leaf = wrap_as_sharded_tensor(_upload(tensor, mesh, spec), mesh.mesh_shape, spec)
    leaf.requires_grad_(tensor.requires_grad)
    return leaf


def _upload(tensor: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> torch.Tensor:
    return ShardingSpec(mesh, spec).upload(tensor.detach().cpu())


def redistribute(tensor: XLAShardedTensor, device_mesh: DeviceMesh, placements: Sequence[Placement]) -> XLAShardedTensor:
    """A new tensor with the same data and these placements; gradients flow back. Raises as `xla_distribute_tensor`."""
    mesh, spec = placed(tensor, device_mesh, placements)
    return wrap_as_sharded_tensor(mark_sharding_with_gradients(tensor, mesh, spec), mesh.mesh_shape, spec)


def auto_policy(mod_name: str, mod: nn.Module, device_mesh: DeviceMesh) -> None:
    """A partition_fn that shards each parameter over the whole mesh, along its largest dimension that is evenly divisible, if one is."""
    mesh = convert_to_xla_mesh(device_mesh)
    axes = tuple(range(len(mesh.mesh_shape)))
    # A list: parameters are replaced on the way.
    for name, parameter in list(mod.named_parameters(recurse=False)):
        dim = largest_even_dim(parameter.shape, mesh.size())
        _shard_tensor(mod, name, parameter, mesh, along(dim, parameter.dim(), axes))


def _shard_tensor(module: nn.Module, name: str, tensor: torch.Tensor, mesh: Mesh, spec: PartitionSpec) -> None:
    """Shard a parameter or buffer: in place on `xla`, else a new one takes its place."""
    if tensor.device.type == "xla":
        mark_sharding(tensor, mesh, spec)
        return
    moved = _upload(tensor, mesh, spec)
    setattr(module, name, nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved)


def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh | None = None,
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
        _replicate(submodule, convert_to_xla_mesh(mesh))
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
    return DeviceMesh("xla", list(range(xr.global_runtime_device_count())))


def _takes(function: Callable[..., Any], what: str) -> int:
    count = len(inspect.signature(function).parameters)
    if count == 2:
        warnings.warn(f"{what} with two parameters is deprecated: let it take (module, …, device_mesh)", FutureWarning, stacklevel=4)
    elif count != 3:
        raise PartitionSpecError(f"{what} takes (module, {what.partition('_')[0]}s, device_mesh), this one has {count} parameters")
    return count


def _input_hook(function: Callable[..., Any] | None, mesh: DeviceMesh) -> Callable[..., Any] | None:
    if function is None:
        return None
    if _takes(function, "input_fn") == 2:
        return lambda module, inputs: function(inputs, mesh)
    return lambda module, inputs: function(module, inputs, mesh)


def _output_hook(function: Callable[..., Any] | None, mesh: DeviceMesh) -> Callable[..., Any] | None:
    if function is None:
        return None
    if _takes(function, "output_fn") == 2:
        return lambda module, inputs, outputs: function(outputs, mesh)
    return lambda module, inputs, outputs: function(module, outputs, mesh)
