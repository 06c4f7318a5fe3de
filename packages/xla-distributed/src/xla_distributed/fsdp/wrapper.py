"""The wrapper: `XlaFullyShardedDataParallel`."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import Groups, ReplicaGroups, even_groups_of
from xla_core.abi.job import is_spmd
from xla_distributed._compat import after_backward, in_backward
from xla_distributed.errors import ModeError
from xla_distributed.fsdp.call import ForwardPass
from xla_distributed.fsdp.containers import apply_to_tensors, collect_tensors
from xla_distributed.fsdp.delegating import Delegating
from xla_distributed.fsdp.flatten import XlaFlattenParamsWrapper
from xla_distributed.fsdp.materialize import materialize
from xla_distributed.fsdp.names import hide_inside
from xla_distributed.fsdp.policies import Policy, recursive_wrap
from xla_distributed.fsdp.reduction import BucketizedReduceScatter
from xla_distributed.fsdp.sharding import ParameterSharding
from xla_distributed.fsdp.unit import FsdpCollectives, FsdpUnit, ShardedParameter, owned, shard_parameter, sharding_of

FLOAT_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
_INSIDE = "_fsdp_wrapped_module"
_WRAPPERS = (f"{_INSIDE}.", "_fpw_module.")


class TrainingState(enum.Enum):
    """What a wrapper does now."""

    IDLE = enum.auto()
    FORWARD = enum.auto()
    BACKWARD = enum.auto()


@dataclass(slots=True)
class _ForwardPasses:
    """The latest forward pass among the wrappers of one model."""

    last: ForwardPass | None = None


class XlaFullyShardedDataParallel(Delegating):
    """Wrap `module` so that each replica of a group holds a shard of its parameters; they are whole while it runs, forward and backward.

    Parameters stay the objects that they are and are moved to the device as shards: 1/N of the elements, flat and padded with zeros. Make
    the optimizer of the wrapper's parameters and call its `step()`: gradients are the mean over the group, as shards, and
    `xm.optimizer_step` leaves them alone. Replicas shard what they have, so they must start from equal parameters. Wrap large submodules
    by themselves, or by `auto_wrap_policy`: a wrapper gathers the parameters that no inner one has, all at once.

    reshard_after_forward: give whole parameters up after forward and gather them again in backward. disable_reshard_on_root: not those of
        the outermost wrapper, whose backward begins at once.
    flatten_parameters: hold one flat parameter for each dtype and `requires_grad`, which is one collective; parameters are its views.
    execute_sharding_on_init: run a step sync when parameters are sharded, which frees the whole ones.
    optimization_barrier_in_forward, optimization_barrier_in_backward: gather parameters only when the module's input, or the gradient of
        its output, is there: less memory. Without, XLA may gather while it computes what comes before.
    sync_on_finalization: run a step sync after each backward.
    compute_dtype: of whole parameters, of floating inputs of the outermost wrapper and of gradients when they travel. None: the
        parameters' own. buffer_dtype: of floating buffers. None: compute_dtype. fp32_reduce_scatter: reduce gradients in float32.
    sharding_groups: lists of ordinals, of one size. None: all replicas. Nothing is reduced between groups. sharding_rank,
        sharding_world_size: this replica's place in its group and the group's size, which are checked.
    shard_param_on_dim_0: shards are runs of rows and keep the other dimensions.
    pin_layout_in_collective_ops: as collectives take it. coalesce_all_gather_ops: gather a wrapper's parameters in one collective for each
        dtype. reduce_scatter_bucket_size_mb: gradients of up to so many MiB are reduced together; 0: each by itself.
    auto_wrap_policy: which submodules get wrappers with the same options, as `recursive_wrap` asks. auto_wrapper_callable: makes these
        wrappers, called as this class; a wrapper that is there already is left alone.
    param_init_fn: called with each submodule that itself has parameters or buffers on `meta`, and must give these (not those of inner
        modules) values. None: `to_empty(recurse=False)` and `reset_parameters()`.

    state_dict and load_state_dict have the names that parameters have in `module`, and shards: each replica saves and loads its own.
    Raises RuntimeError for a module that is wrapped already and in SPMD mode, ValueError for groups and places that do not fit,
    AssertionError for groups of several sizes.
    """

    _inside = _INSIDE

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: ReplicaGroups = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Policy | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], Any] | None = None,
    ) -> None:
        options = {name: value for name, value in locals().items() if name not in ("self", "module", "__class__")}
        _check_module(module)
        _check_dtypes(compute_dtype=compute_dtype, buffer_dtype=buffer_dtype)
        super().__init__()
        group = even_groups_of(sharding_groups, "XlaFullyShardedDataParallel")
        _check_place(group, sharding_rank, sharding_world_size)
        if auto_wrap_policy is not None:
            del options["auto_wrap_policy"], options["auto_wrapper_callable"]
            _wrap_inside(module, auto_wrap_policy, auto_wrapper_callable or type(self), options)
        self.reshard_after_forward = reshard_after_forward
        self.disable_reshard_on_root = disable_reshard_on_root
        self.optimization_barrier_in_forward = optimization_barrier_in_forward
        self.optimization_barrier_in_backward = optimization_barrier_in_backward
        self.sync_on_finalization = sync_on_finalization
        self.compute_dtype = compute_dtype
        self.training_state = TrainingState.IDLE
        self._is_root: bool | None = None
        self._passes = _ForwardPasses()
        self._bucket_size_mb = reduce_scatter_bucket_size_mb or 0
        self._shard_on_dim_0 = shard_param_on_dim_0
        self._buffer_dtypes: dict[str, torch.dtype] = {}
        device = torch_xla.device()
        materialize([owner for _, owner in owned(module, XlaFullyShardedDataParallel)], device, param_init_fn)
        self._move_buffers(module, device, compute_dtype if buffer_dtype is None else buffer_dtype)
        lists = _flat_lists(module) if flatten_parameters else []
        self._fsdp_wrapped_module = XlaFlattenParamsWrapper(module, lists, auto_unflatten_state_dict=False)
        # The compilers for accelerators put collectives together without a copy; on CPU that is the user's choice.
        together = coalesce_all_gather_ops or xm.xla_device_hw(device) != "CPU"
        collectives = FsdpCollectives(sharding_groups, group, pin_layout_in_collective_ops, compute_dtype, fp32_reduce_scatter, together)
        self._unit = FsdpUnit(self._shard(group, device), collectives)
        self._fsdp_wrapped_module.hide_views()
        hide_inside(self, _INSIDE)
        if execute_sharding_on_init:
            torch_xla.sync()

    @property
    def module(self) -> XlaFlattenParamsWrapper:
        """The wrapped module, in the wrapper that flattens parameters; its `.module` is what was given."""
        return self._fsdp_wrapped_module

    def _shard(self, group: Groups, device: torch.device) -> list[ShardedParameter]:
        """Shard each parameter that is still whole; return all parameters of the modules outside inner wrappers."""
        sharded: dict[nn.Parameter, ShardedParameter] = {}
        for _, owner in owned(self._fsdp_wrapped_module, XlaFullyShardedDataParallel):
            for name, parameter in owner._parameters.items():
                if parameter is None:
                    continue
                if parameter not in sharded:
                    sharded[parameter] = ShardedParameter(parameter, self._sharding(parameter, group, device))
                if (owner, name) not in sharded[parameter].places:
                    sharded[parameter].places.append((owner, name))
        return list(sharded.values())

    def _sharding(self, parameter: nn.Parameter, group: Groups, device: torch.device) -> ParameterSharding:
        sharding = sharding_of(parameter)
        if sharding is None:
            sharding = ParameterSharding(tuple(parameter.shape), group.size, self._shard_on_dim_0)
            shard_parameter(parameter, sharding, group.position, device)
        elif sharding.members != group.size:
            raise ValueError(
                f"a parameter of shape {sharding.shape} is tied to one that is sharded among {sharding.members} replicas, "
                f"not {group.size}: give both wrappers the same sharding_groups"
            )
        return sharding

    def _move_buffers(self, module: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
        for path, owner in owned(module, XlaFullyShardedDataParallel):
            for name, buffer in owner._buffers.items():
                if buffer is None:
                    continue
                self._buffer_dtypes[f"{path}.{name}" if path else name] = buffer.dtype
                owner._buffers[name] = buffer.to(device, dtype if buffer.is_floating_point() else None)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module with whole parameters."""
        if self._is_root is None:
            self._become_root()
        if self._is_root and self.compute_dtype is not None:
            args, kwargs = apply_to_tensors(self._to_compute_dtype, (args, kwargs))
        keeps = not self.reshard_after_forward or bool(self._is_root and self.disable_reshard_on_root)
        flat = self._fsdp_wrapped_module
        previous = None if self._is_root or in_backward() else self._passes.last
        separate = self.optimization_barrier_in_backward
        forward_pass = ForwardPass(self._unit, keeps, separate, previous, flat.show_views, flat.hide_views, self._finish)
        self._passes.last = forward_pass
        ties = _on_device((args, kwargs)) if self.optimization_barrier_in_forward else []
        with self._state(TrainingState.FORWARD), forward_pass.parameters(ties):
            output = flat(*args, **kwargs)
        if self._is_root:
            self._passes.last = None
        for tensor in collect_tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(forward_pass.before_backward)
        return output

    def _to_compute_dtype(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

    @contextmanager
    def _state(self, state: TrainingState) -> Iterator[None]:
        before, self.training_state = self.training_state, state
        try:
            yield
        finally:
            self.training_state = before

    def _wrappers(self) -> list[XlaFullyShardedDataParallel]:
        """This one and those inside."""
        return [module for module in self.modules() if isinstance(module, XlaFullyShardedDataParallel)]

    def _become_root(self) -> None:
        """Make this wrapper, the first that is called, the outermost: inner wrappers reduce gradients in its buckets."""
        collectives = self._unit.collectives
        size, groups, pin_layout = collectives.group.size, collectives.listed, collectives.pin_layout
        buckets = BucketizedReduceScatter(self._bucket_size_mb, size, groups, pin_layout) if self._bucket_size_mb else None
        for wrapper in self._wrappers():
            wrapper._is_root = wrapper is self
            wrapper._passes = self._passes
            wrapper._unit.buckets = buckets if wrapper._unit.collectives.listed == groups else None

    def _finish(self) -> None:
        self._unit.flush()
        if self._is_root:
            for wrapper in self._wrappers():
                wrapper._unit.reduce_accumulated()
            self._unit.flush()
            if self.sync_on_finalization:
                after_backward(torch_xla.sync)  # after those inside have given up their parameters

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward adds gradients up without reducing them; the first backward outside reduces the sum.

        The sums are of whole gradients, in memory of their own until then, and not in `.grad`.
        """
        units = [wrapper._unit for wrapper in self._wrappers()]
        previous = [unit.synchronizes for unit in units]
        for unit in units:
            unit.synchronizes = False
        try:
            yield
        finally:
            for unit, value in zip(units, previous, strict=True):
                unit.synchronizes = value

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0, groups: ReplicaGroups = None) -> torch.Tensor:
        """Scale gradients down to a norm, taken over whole gradients; the norm before, 0-d on the device, without reading it.

        groups: over which shards' norms are added up. None: the sharding groups. Call it on the outermost wrapper, after backward.
        Raises RuntimeError inside forward, ValueError for a norm_type that is not positive.
        """
        if self.training_state is not TrainingState.IDLE:
            raise RuntimeError("clip_grad_norm_ was called inside the module's forward pass: call it after backward")
        if not norm_type > 0:
            raise ValueError(f"norm_type is {norm_type}, must be positive")
        listed = self._unit.collectives.listed if groups is None else groups
        parameters = list(self.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, norm_type)
        # Without gradients the norm is a zero on the CPU, and this replica still takes part.
        norm = norm.to(torch_xla.device(), torch.promote_types(norm.dtype, torch.float32))
        if norm_type == float("inf"):
            total: torch.Tensor = xm.all_reduce("max", norm, groups=listed)
        else:
            total = xm.all_reduce("sum", norm**norm_type, groups=listed) ** (1.0 / norm_type)
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
        return total

    def get_shard_metadata(self) -> dict[str, Any]:
        """What `consolidate_sharded_state_dicts` needs to put state dicts of all replicas together: plain values, as checkpoints take them.

        shard_info: shape and sharding of each parameter, and the first of its names; flatten_info: what flat ones hold; buffer_info: dtypes
        of buffers before they were converted; world_size, rank: of the sharding group.
        """
        group = self._unit.collectives.group
        info: dict[str, Any] = {"shard_info": {}, "flatten_info": {}, "buffer_info": {}, "world_size": group.size, "rank": group.position}
        for path, module in self.named_modules(remove_duplicate=False):
            prefix = _plain(f"{path}." if path else "")
            if isinstance(module, XlaFullyShardedDataParallel):
                info["buffer_info"].update({prefix + _plain(name): str(dtype) for name, dtype in module._buffer_dtypes.items()})
            if isinstance(module, XlaFlattenParamsWrapper):
                for name, layout in zip(module.flat_param_names, module.layouts, strict=True):
                    shapes = [list(shape) for shape in layout.param_shapes]
                    shared = {".".join(filter(None, (path, name))): first for path, name, first in layout.shared_param_infos}
                    info["flatten_info"][prefix + name] = {"names": layout.names, "shapes": shapes, "shared": shared}
        firsts: dict[nn.Parameter, str] = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            sharding = sharding_of(parameter)
            if sharding is not None:
                first = firsts.setdefault(parameter, _plain(name))
                info["shard_info"][_plain(name)] = {"shape": list(sharding.shape), "on_dim_0": sharding.on_dim_0, "same_as": first}
        return info


def _plain(name: str) -> str:
    for part in _WRAPPERS:
        name = name.replace(part, "")
    return name


def _check_module(module: nn.Module) -> None:
    if is_spmd():
        raise ModeError("SPMD mode has one program, not replicas: wrap in SpmdFullyShardedDataParallel")
    if isinstance(module, XlaFullyShardedDataParallel):
        raise RuntimeError("the module is wrapped in XlaFullyShardedDataParallel already")


def _check_dtypes(**dtypes: torch.dtype | None) -> None:
    for name, dtype in dtypes.items():
        if dtype is not None and dtype not in FLOAT_DTYPES:
            raise ValueError(f"{name} is {dtype}, must be one of {', '.join(map(str, FLOAT_DTYPES))}")


def _check_place(group: Groups, rank: int | None, size: int | None) -> None:
    for name, requested, actual in (("sharding_rank", rank, group.position), ("sharding_world_size", size, group.size)):
        if requested is not None and requested != actual:
            raise ValueError(f"{name} is {requested}; by sharding_groups this replica has {actual}")


def _wrap_inside(module: nn.Module, policy: Policy, make: Callable[..., nn.Module], options: dict[str, Any]) -> None:
    wrapped = [inner for inner in module.modules() if isinstance(inner, XlaFullyShardedDataParallel)]
    ignored = {inner for wrapper in wrapped for inner in wrapper.modules()}
    parameters = {parameter for wrapper in wrapped for parameter in wrapper.parameters()}
    recursive_wrap(module, policy, make, ignored, parameters, only_wrap_children=True, **options)


def _flat_lists(module: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters that no wrapper has, in a list for each dtype and `requires_grad`."""
    lists: dict[Any, list[nn.Parameter]] = {}
    for _, owner in owned(module, XlaFullyShardedDataParallel):
        for parameter in owner._parameters.values():
            if parameter is not None and sharding_of(parameter) is None:
                parameters = lists.setdefault((parameter.dtype, parameter.requires_grad), [])
                if all(parameter is not other for other in parameters):
                    parameters.append(parameter)
    return list(lists.values())


def _on_device(container: Any) -> list[torch.Tensor]:
    return [tensor for tensor in collect_tensors(container) if tensor.device.type == "xla"]
