"""The table of collectives, and their functions for one replica, which need no other distribution.

All functions look names of `torch_xla.core.xla_model` up at each call: users may have replaced a function there.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.api.collective_arguments import Groups, check_groups, check_output, check_tensors, tensor_list
from xla_core.api.conversion import maybe_convert_to_cpu
from xla_core.api.hardware import global_device_count
from xla_core.api.job import addressable_device_count, global_ordinal, is_spmd
from xla_core.api.plugins import missing
from xla_core.api.reductions import parse_reduce_op
from xla_core.api.step import sync
from xla_core.api.step_closures import device_context
from xla_core.api.user_modules import xm, xr
from xla_core.base import config
from xla_core.base.installation import DISTRIBUTED, SERIALIZATION


class Serves(enum.Enum):
    """The calls of a collective that the core's function serves."""

    ONE_REPLICA = enum.auto()  # whether or not the owner is installed; it serves several replicas
    ANY_NUMBER = enum.auto()  # of replicas: the function calls others that serve several
    NOT_INSTALLED = enum.auto()  # one replica while the owner is missing; an installed owner serves one, too


@dataclass(frozen=True, slots=True)
class Collective:
    """One function among replicas, as users know it.

    module, name: under which users know it; single: the function for one replica, None if that needs the owner; between_devices: in SPMD
    mode, which has one replica, it acts between the devices of a manual region; owner: the distribution that implements it for several.
    """

    module: str
    name: str
    single: Callable[..., Any] | None = None
    between_devices: bool = False
    serves: Serves = Serves.ONE_REPLICA
    owner: str = DISTRIBUTED


def _scaled(value: torch.Tensor, scale: float) -> torch.Tensor:
    return value.clone() if scale == 1.0 else (value * scale).to(value.dtype)


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True) -> Any:
    """A clone, or the list itself; scaled only under `XLA_ALWAYS_ALLREDUCE`."""
    single = isinstance(inputs, torch.Tensor)
    tensors = [inputs] if single else list(inputs)
    check_tensors("all_reduce", tensors)
    parse_reduce_op(reduce_type).check_dtypes(tensors)
    check_groups(groups, 1)
    if not config.ALWAYS_ALLREDUCE.get():
        return inputs.clone() if single else inputs
    if single:
        return _scaled(inputs, scale)
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(_scaled(tensor, scale))
    return inputs


def _fill(name: str, value: Any, results: Any, output: Any) -> Any:
    """The results; written to `output` if it is not None, list to list."""
    check_output(name, value, output)
    if output is None:
        return results
    if isinstance(value, torch.Tensor):
        return output.copy_(results)
    for target, result in zip(output, results, strict=True):
        target.copy_(result)
    return output


def all_gather(
    value: Any,
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """The input."""
    check_groups(groups, 1)
    check_tensors("all_gather", tensor_list("all_gather", value, pin_layout), dim)
    results = value.clone() if isinstance(value, torch.Tensor) else [tensor.clone() for tensor in value]
    return _fill("all_gather", value, results, output)


def all_gather_using_all_reduce(value: torch.Tensor, dim: int = 0, groups: Groups = None, pin_layout: bool = True) -> torch.Tensor:
    """The input."""
    check_groups(groups, 1)
    check_tensors("all_gather", [value], dim)
    return value.clone()


def all_gather_bucketized(
    input_list: list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """The inputs."""
    if pin_layout:
        raise RuntimeError("all_gather_bucketized needs pin_layout=False")
    return all_gather(input_list, dim, groups, output, pin_layout)


def all_to_all(
    value: torch.Tensor, split_dimension: int, concat_dimension: int, split_count: int, groups: Groups = None, pin_layout: bool = True
) -> torch.Tensor:
    """The input; there is one part."""
    check_groups(groups, 1)
    if split_count != 1:
        raise ValueError(f"all_to_all: split_count is {split_count}, must be the group's size, 1")
    for dim in (split_dimension, concat_dimension):
        check_tensors("all_to_all", [value], dim)
    return value.clone()


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """The input if replica 0 sends it to itself, else zeros."""
    check_tensors("collective_permute", [value])
    permutation = [tuple(pair) for pair in pairs]
    if permutation not in ([], [(0, 0)]):
        raise ValueError(f"collective_permute: pairs name each source and target once; there is one replica, 0, got {permutation}")
    return value.clone() if permutation else torch.zeros_like(value)


def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True) -> None:
    """Nothing to do."""
    check_tensors("collective_broadcast", tensors)
    check_groups(groups, 1)
    if root_ordinal != 0:
        raise ValueError(f"collective_broadcast: root_ordinal is {root_ordinal}, there is one replica, 0")


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """The scaled input; there is one shard."""
    check_groups(groups, 1)
    tensors = tensor_list("reduce_scatter", input, pin_layout)
    check_tensors("reduce_scatter", tensors, scatter_dim)
    parse_reduce_op(reduce_type).check_dtypes(tensors)
    if shard_count != 1:
        raise ValueError(f"reduce_scatter: shard_count is {shard_count}, must be the group's size, 1")
    results = _scaled(input, scale) if isinstance(input, torch.Tensor) else [_scaled(tensor, scale) for tensor in input]
    return _fill("reduce_scatter", input, results, output)


def reduce_scatter_bucketized(
    reduce_type: str,
    input_list: list[torch.Tensor],
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: Any = None,
    pin_layout: bool = False,
    bucket_cap_mb: int = 160,
) -> Any:
    """The scaled inputs."""
    return reduce_scatter(reduce_type, input_list, scale, scatter_dim, shard_count, groups, output, pin_layout)


def all_reduce_bucketized_gradients(
    gradients: Iterable[torch.Tensor], scale: float, groups: Groups, pin_layout: bool, bucket_cap_mb: int = 0
) -> None:
    """Sums over one replica, as `all_reduce`."""
    for gradient in gradients:
        xm(all_reduce)("sum", [gradient], scale=scale, groups=groups, pin_layout=pin_layout)


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients' data in the order of the parameter groups, without the gradients of shards (FSDP), which are reduced already."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad.data for parameter in parameters if parameter.grad is not None and not getattr(parameter, "_is_sharded", False)]


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """Nothing to do."""
    check_groups(groups, 1)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce the gradients, `optimizer.step(**optimizer_args)`, then a step sync if `barrier`. Returns the optimizer's result."""
    xm(reduce_gradients)(optimizer, groups=groups, pin_layout=pin_layout)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        sync()
    return result


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """The payload alone; syncs before and after."""
    if not isinstance(payload, bytes):
        raise TypeError(f"the payload of a rendezvous is bytes, got {type(payload).__name__}")
    if ordinals and len(ordinals) != xr(global_device_count)():
        raise ValueError(f"a rendezvous takes all {xr(global_device_count)()} devices, got ordinals {list(ordinals)}")
    sync()
    sync()
    return [payload]


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """As `xla_rendezvous`."""
    return xm(xla_rendezvous)(payload, replicas or None, tag=tag)


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] | int = (0,)) -> Any:
    """`target(*data)` with CPU tensors, if 0 is among the ordinals."""
    chosen = [ordinals] if isinstance(ordinals, int) else list(ordinals)
    running = xr(global_ordinal)() in chosen
    cpu = maybe_convert_to_cpu(data, convert=running)
    result = target(*cpu) if running else None
    xm(rendezvous)("torch_xla.core.xla_model.do_on_ordinals")
    return result


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of one part."""
    cpu = maybe_convert_to_cpu(data)
    xm(rendezvous)(tag)
    return reduce_fn([cpu])


def broadcast_master_param(model: torch.nn.Module) -> None:
    """A step sync."""
    sync()


def get_all_reduce_token() -> tuple[Any, Any]:
    """An opaque handle and the device's context."""
    context = device_context()
    return context.all_reduce_token, context


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False, sync: bool = False) -> None:
    """`torch.save` of the nesting with CPU tensors. sync: a rendezvous afterwards."""
    cpu = maybe_convert_to_cpu(data)
    torch.save(cpu, file_or_path)
    if sync:
        xm(rendezvous)("torch_xla.core.xla_model.save")


def differentiable_all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`torch_xla.core.functions.all_gather` and `all_gather_summed`: the input."""
    check_tensors("all_gather", [value], dim)
    return value.clone()


def differentiable_all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Groups = None) -> torch.Tensor:
    """`torch_xla.core.functions.all_reduce`: the input."""
    result: torch.Tensor = xm(all_reduce)(reduce_type, value, scale=scale, groups=groups)
    return result


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """`torch_xla.core.functions.distributed_mm`: the product of the whole matrices."""
    return w @ x


def launch(fn: Callable[..., Any], args: tuple[Any, ...] = (), start_method: str = "spawn", debug_single_process: bool = False) -> None:
    """Call `fn(0, *args)` in this process; several devices need the launcher of xla-distributed."""
    if is_spmd():
        raise NotImplementedError("torch_xla.launch starts replicas, SPMD mode has one: call the function directly")
    if not debug_single_process and xr(addressable_device_count)() > 1:
        raise missing("torch_xla.launch", DISTRIBUTED)
    fn(0, *args)


_XM, _XF = "torch_xla.core.xla_model", "torch_xla.core.functions"
COLLECTIVES: tuple[Collective, ...] = (
    Collective(_XM, "CoalescingBuckets"),
    Collective(_XM, "_all_gather_using_all_reduce", all_gather_using_all_reduce, between_devices=True),
    Collective(_XM, "_fetch_gradients", fetch_gradients, serves=Serves.ANY_NUMBER),
    Collective(_XM, "_get_all_reduce_token", get_all_reduce_token),
    Collective(_XM, "all_gather", all_gather, between_devices=True),
    Collective(_XM, "all_gather_bucketized", all_gather_bucketized, between_devices=True),
    Collective(_XM, "all_reduce", all_reduce, between_devices=True),
    Collective(_XM, "all_reduce_bucketized_gradients", all_reduce_bucketized_gradients),
    Collective(_XM, "all_to_all", all_to_all, between_devices=True),
    Collective(_XM, "broadcast_master_param", broadcast_master_param),
    Collective(_XM, "collective_broadcast", collective_broadcast, between_devices=True),
    Collective(_XM, "collective_permute", collective_permute, between_devices=True),
    Collective(_XM, "do_on_ordinals", do_on_ordinals),
    Collective(_XM, "mesh_reduce", mesh_reduce),
    Collective(_XM, "optimizer_step", optimizer_step, serves=Serves.ANY_NUMBER),
    Collective(_XM, "recv"),
    Collective(_XM, "reduce_gradients", reduce_gradients),
    Collective(_XM, "reduce_scatter", reduce_scatter, between_devices=True),
    Collective(_XM, "reduce_scatter_bucketized", reduce_scatter_bucketized, between_devices=True),
    Collective(_XM, "rendezvous", rendezvous, serves=Serves.ANY_NUMBER),
    Collective(_XM, "save", save, serves=Serves.NOT_INSTALLED, owner=SERIALIZATION),
    Collective(_XM, "send"),
    Collective(_XM, "xla_rendezvous", xla_rendezvous),
    Collective(_XF, "AllGather"),
    Collective(_XF, "AllReduce"),
    Collective(_XF, "AllReduceSumLayer"),
    Collective(_XF, "SyncBatchNorm"),
    Collective(_XF, "all_gather", differentiable_all_gather, between_devices=True),
    Collective(_XF, "all_gather_summed", differentiable_all_gather),
    Collective(_XF, "all_reduce", differentiable_all_reduce, between_devices=True),
    Collective(_XF, "distributed_mm", distributed_mm, between_devices=True),
    Collective("torch_xla", "launch", launch, serves=Serves.NOT_INSTALLED),
)
