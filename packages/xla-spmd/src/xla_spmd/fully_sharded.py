"""A module whose parameters and output are sharded over a mesh axis (FSDPv2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

import torch_xla
from xla_spmd.annotations import requested_annotation
from xla_spmd.auto_wrap import Policy, wrap_children
from xla_spmd.errors import AnnotationError, PartitionSpecError
from xla_spmd.linear import apply_backward_optimization_barrier
from xla_spmd.marking import mark_sharding
from xla_spmd.mesh import AnyMesh, Mesh, as_mesh, get_global_mesh
from xla_spmd.specs import PartitionSpec
from xla_spmd.tensor import unwrap_sharded_tensor

_AXIS = "fsdp"
_INSIDE = "_orig_module"

ShardOutput = Callable[[Any, Mesh], Any]


class SpmdFullyShardedDataParallel(nn.Module):
    """`module`, moved to `xla`, with each parameter sharded on the mesh axis `fsdp` along its largest dimension.

    The module's parameters stay the objects that they are once they are on `xla`; those already sharded stay as they are.

    mesh: None for the global one. shard_output: called with the output and the mesh, to shard the output; None: dimension 0 of
    the output, or of the first tensor of a tuple, is sharded on `fsdp`. extra_data_axis: the output is sharded on this axis, too.
    auto_wrap_policy: which submodules get a wrapper of their own (`auto_wrap.wrap_children`). auto_wrapper_callable: makes these
    wrappers, called as this class.
    state_dict and load_state_dict have the names that parameters have in `module`, whatever is wrapped.
    Raises ValueError for a mesh without these axes, RuntimeError for a module that is wrapped already and outside SPMD mode.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: AnyMesh | None = None,
        shard_output: ShardOutput | None = None,
        auto_wrap_policy: Policy | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ) -> None:
        super().__init__()
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise AnnotationError("the module is wrapped in SpmdFullyShardedDataParallel already")
        self._mesh = _checked(mesh, extra_data_axis)
        self._extra_data_axis = extra_data_axis
        self._separated = False
        self._shard_output = self._shard_dim_0 if shard_output is None else shard_output
        if auto_wrap_policy is not None:
            make = auto_wrapper_callable or SpmdFullyShardedDataParallel
            options: dict[str, Any] = {"mesh": mesh, "shard_output": shard_output, "extra_data_axis": extra_data_axis}
            set_options = {name: option for name, option in options.items() if option is not None}
            wrap_children(module, auto_wrap_policy, lambda child: make(child, **set_options), SpmdFullyShardedDataParallel)
        if any(parameter.device.type != "xla" for parameter in module.parameters()) or any(
            b.device.type != "xla" for b in module.buffers()
        ):
            module = module.to(torch_xla.device())
        self._orig_module = module
        for parameter in module.parameters():
            if requested_annotation(unwrap_sharded_tensor(parameter)) is None:
                mark_sharding(parameter, self._mesh, _along_largest(parameter.shape))
        for submodule in module.modules():  # nothing follows the backward pass of the outermost module
            if isinstance(submodule, SpmdFullyShardedDataParallel):
                submodule._separate_backward()
        self.register_state_dict_post_hook(_without_prefix)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_with_prefix)  # type: ignore[no-untyped-call]

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; its output is sharded by `shard_output`."""
        output = self._orig_module(*args, **kwargs)
        self._shard_output(output, self._mesh)
        return output

    def _separate_backward(self) -> None:
        if not self._separated:
            apply_backward_optimization_barrier(self._orig_module)
            self._separated = True

    def _shard_dim_0(self, output: Any, mesh: AnyMesh) -> None:
        if isinstance(output, tuple) and output and isinstance(output[0], torch.Tensor):
            warnings.warn("the output is a tuple: its first tensor is sharded; give shard_output= to shard it otherwise", stacklevel=5)
            output = output[0]
        if not isinstance(output, torch.Tensor):
            raise AnnotationError(f"the output is a {type(output).__name__}: give shard_output=, a function that shards it")
        if output.dim():
            axis = _AXIS if self._extra_data_axis is None else (self._extra_data_axis, _AXIS)
            mark_sharding(output, mesh, (axis,) + (None,) * (output.dim() - 1))

    def __getattr__(self, name: str) -> Any:
        """The wrapped module's attribute, if this has none."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == _INSIDE:  # not there yet
                raise
            return getattr(self._orig_module, name)

    def __getitem__(self, key: int) -> Any:
        """The wrapped module's item, if it has items."""
        return self._orig_module[key]  # type: ignore[index]


def _checked(mesh: AnyMesh | None, extra_data_axis: str | None) -> Mesh:
    chosen = get_global_mesh() if mesh is None else mesh
    if chosen is None:
        raise PartitionSpecError("SpmdFullyShardedDataParallel needs a mesh: give mesh=, or set one with set_global_mesh")
    chosen = as_mesh(chosen)
    for axis in (_AXIS,) if extra_data_axis is None else (_AXIS, extra_data_axis):
        if chosen.get_axis_name_idx(axis) is None:
            raise PartitionSpecError(f"SpmdFullyShardedDataParallel needs a mesh with an axis {axis!r}, this one has {chosen.axis_names}")
    return chosen


def _along_largest(shape: tuple[int, ...]) -> PartitionSpec:
    largest = max(range(len(shape)), key=shape.__getitem__, default=None)
    return tuple([_AXIS if dim == largest else None for dim in range(len(shape))])


def _without_prefix(wrapper: nn.Module, state: Any, prefix: str, local_metadata: Any) -> None:
    """Remove the wrapper's prefix from the names in a state_dict and its metadata: a post hook of state_dict."""
    inside = f"{prefix}{_INSIDE}."
    for name in [name for name in state if name.startswith(inside)]:
        state[prefix + name.removeprefix(inside)] = state.pop(name)
    metadata = getattr(state, "_metadata", {})
    for name in [name for name in metadata if f"{name}.".startswith(inside)]:
        metadata[(prefix + f"{name}.".removeprefix(inside)).rstrip(".")] = metadata.pop(name)


def _with_prefix(wrapper: nn.Module, state: Any, prefix: str, *_: Any) -> None:
    """Add the wrapper's prefix to the names that lack it: a pre hook of load_state_dict."""
    inside = f"{prefix}{_INSIDE}."
    for name in [name for name in state if name.startswith(prefix) and not name.startswith(inside)]:
        state[inside + name.removeprefix(prefix)] = state.pop(name)
    metadata = getattr(state, "_metadata", {})
    versions: Mapping[str, Any] = {name: version for name, version in metadata.items() if f"{name}.".startswith(prefix)}
    for name, version in versions.items():
        if not f"{name}.".startswith(inside):
            metadata[(inside + f"{name}.".removeprefix(prefix)).rstrip(".")] = version
