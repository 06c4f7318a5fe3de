"""Collectives and the like for one replica, where no sibling implements them.

All look `torch_xla.core.xla_model` up at each call: a client may have replaced a function there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from xla_core import config
from xla_core.facade.modules import xm, xr
from xla_core.facade.step import sync

Groups = Sequence[Sequence[int]] | None
_REDUCTIONS = ("sum", "mul", "and", "or", "min", "max")


def _check_groups(groups: Groups) -> None:
    """One replica: no groups, or the group of ordinal 0."""
    if groups and [list(group) for group in groups] != [[0]]:
        raise ValueError(f"groups are lists of ordinals that name each replica once; there is one replica, 0, got {groups!r}")


def _check_tensors(name: str, tensors: Sequence[Any], dim: int | None = None) -> None:
    """Raise TypeError for what is no tensor, IndexError for a dimension that one does not have, as several replicas do."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} takes tensors, got {type(tensor).__name__}")
        if dim is not None:
            tensor.size(dim)


def _check_reduction(reduce_type: str, tensors: Sequence[torch.Tensor]) -> None:
    if reduce_type not in _REDUCTIONS:
        raise ValueError(f"reduce_type is {reduce_type!r}, must be one of {', '.join(_REDUCTIONS)}")
    for tensor in tensors:
        if reduce_type in ("and", "or") and (tensor.is_floating_point() or tensor.is_complex()):
            raise TypeError(f"reduce_type {reduce_type!r} is for booleans and integers, got {tensor.dtype}")
        if reduce_type in ("min", "max") and tensor.is_complex():
            raise TypeError(f"reduce_type {reduce_type!r} needs an order, which {tensor.dtype} has not")


def _scaled(value: torch.Tensor, scale: float) -> torch.Tensor:
    return value.clone() if scale == 1.0 else (value * scale).to(value.dtype)


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Groups = None, pin_layout: bool = True) -> Any:
    """A clone, or the list itself; the scale counts only under `XLA_ALWAYS_ALLREDUCE`."""
    single = isinstance(inputs, torch.Tensor)
    tensors = [inputs] if single else list(inputs)
    _check_tensors("all_reduce", tensors)
    _check_reduction(reduce_type, tensors)
    _check_groups(groups)
    if not config.ALWAYS_ALLREDUCE.get():
        return inputs.clone() if single else inputs
    if single:
        return _scaled(inputs, scale)
    with torch.no_grad():
        for tensor in tensors:
            tensor.copy_(_scaled(tensor, scale))
    return inputs


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, torch.Tensor) for item in value)


def _fill(name: str, value: Any, results: Any, output: Any) -> Any:
    """Results, written to `output` if given; lists to lists."""
    if output is None:
        return results
    if isinstance(value, torch.Tensor):
        if not isinstance(output, torch.Tensor):
            raise TypeError(f"{name}: output for a tensor must be a tensor, got {type(output).__name__}")
        return output.copy_(results)
    if not _is_tensor_list(output):
        raise TypeError(f"{name}: output for a list must be a list of tensors, got {type(output).__name__}")
    if len(output) != len(value):
        raise ValueError(f"{name}: output has {len(output)} tensors for {len(value)} inputs")
    for target, result in zip(output, results, strict=True):
        target.copy_(result)
    return output


def _listed(name: str, value: Any, dim: int, pin_layout: bool) -> list[torch.Tensor]:
    """The tensors of an argument that is one or a list; all have the dimension `dim`."""
    if not isinstance(value, torch.Tensor):
        if not _is_tensor_list(value):
            raise TypeError(f"{name} takes a tensor or a list of tensors, got {type(value).__name__}")
        if pin_layout:
            raise RuntimeError(f"{name} of a list needs pin_layout=False")
    tensors = [value] if isinstance(value, torch.Tensor) else value
    _check_tensors(name, tensors, dim)
    return tensors


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
    _check_groups(groups)
    _listed("all_gather", value, dim, pin_layout)
    results = value.clone() if isinstance(value, torch.Tensor) else [tensor.clone() for tensor in value]
    return _fill("all_gather", value, results, output)


def all_gather_using_all_reduce(value: torch.Tensor, dim: int = 0, groups: Groups = None, pin_layout: bool = True) -> torch.Tensor:
    """The input."""
    _check_groups(groups)
    _check_tensors("all_gather", [value], dim)
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
    _check_groups(groups)
    if split_count != 1:
        raise ValueError(f"all_to_all: split_count is {split_count}, must be the group's size, 1")
    for dim in (split_dimension, concat_dimension):
        _check_tensors("all_to_all", [value], dim)
    return value.clone()


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """The input if it is sent to itself, else zeros."""
    _check_tensors("collective_permute", [value])
    given = [tuple(pair) for pair in pairs]
    if given not in ([], [(0, 0)]):
        raise ValueError(f"collective_permute: pairs name each source and target once; there is one replica, 0, got {given}")
    return value.clone() if given else torch.zeros_like(value)


def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True) -> None:
    """Nothing to do."""
    _check_tensors("collective_broadcast", tensors)
    _check_groups(groups)
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
    _check_groups(groups)
    _check_reduction(reduce_type, _listed("reduce_scatter", input, scatter_dim, pin_layout))
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
        xm().all_reduce("sum", [gradient], scale=scale, groups=groups, pin_layout=pin_layout)


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients' data in the order of the parameter groups."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad.data for parameter in parameters if parameter.grad is not None]


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True) -> None:
    """Nothing to do."""
    _check_groups(groups)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce the gradients, `optimizer.step(**optimizer_args)`, then a step sync if `barrier`; what the optimizer returned."""
    xm().reduce_gradients(optimizer, groups=groups, pin_layout=pin_layout)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        sync()
    return result


def xla_rendezvous(payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None) -> list[bytes]:
    """The payload alone; syncs before and after."""
    if not isinstance(payload, bytes):
        raise TypeError(f"the payload of a rendezvous is bytes, got {type(payload).__name__}")
    if ordinals and len(ordinals) != xr().global_device_count():
        raise ValueError(f"a rendezvous takes all {xr().global_device_count()} devices, got ordinals {list(ordinals)}")
    sync()
    sync()
    return [payload]


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """As `xla_rendezvous`."""
    result: list[bytes] = xm().xla_rendezvous(payload, replicas or None, tag=tag)
    return result


def do_on_ordinals(target: Callable[..., Any], data: Any = (), ordinals: Sequence[int] | int = (0,)) -> Any:
    """`target(*data)` with CPU tensors, if 0 is among the ordinals."""
    chosen = [ordinals] if isinstance(ordinals, int) else list(ordinals)
    running = xr().global_ordinal() in chosen
    cpu = xm()._maybe_convert_to_cpu(data, convert=running)
    result = target(*cpu) if running else None
    xm().rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


def mesh_reduce(tag: str, data: Any, reduce_fn: Callable[[list[Any]], Any]) -> Any:
    """`reduce_fn` of one part."""
    cpu = xm()._maybe_convert_to_cpu(data)
    xm().rendezvous(tag)
    return reduce_fn([cpu])


def broadcast_master_param(model: torch.nn.Module) -> None:
    """A step sync."""
    sync()


def get_all_reduce_token() -> tuple[Any, Any]:
    """An opaque handle and the device's context."""
    context = xm()._get_device_context()
    return context.all_reduce_token, context


def save(data: Any, file_or_path: Any, master_only: bool = True, global_master: bool = False, sync: bool = False) -> None:
    """`torch.save` of the nesting with CPU tensors; `sync` adds a rendezvous."""
    cpu = xm()._maybe_convert_to_cpu(data)
    torch.save(cpu, file_or_path)
    if sync:
        xm().rendezvous("torch_xla.core.xla_model.save")


def differentiable_all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`torch_xla.core.functions.all_gather` and `all_gather_summed`: the input."""
    _check_tensors("all_gather", [value], dim)
    return value.clone()


def differentiable_all_reduce(reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: Groups = None) -> torch.Tensor:
    """`torch_xla.core.functions.all_reduce`: the input."""
    result: torch.Tensor = xm().all_reduce(reduce_type, value, scale=scale, groups=groups)
    return result


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """`torch_xla.core.functions.distributed_mm`: the product of the whole matrices."""
    return w @ x


def launch(fn: Callable[..., Any], args: tuple[Any, ...] = (), start_method: str = "spawn", debug_single_process: bool = False) -> None:
    """`fn(0, *args)` in this process; more devices than one need the launcher of xla-distributed."""
    from xla_core.facade.siblings import DISTRIBUTED, missing

    if xr().is_spmd():
        raise NotImplementedError("torch_xla.launch starts replicas, SPMD mode has one: call the function directly")
    if not debug_single_process and xr().addressable_device_count() > 1:
        raise missing("torch_xla.launch", DISTRIBUTED)
    fn(0, *args)


# Right for any number of replicas, since what they call is.
ANYWHERE: Mapping[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model._fetch_gradients": fetch_gradients,
    "torch_xla.core.xla_model.optimizer_step": optimizer_step,
    "torch_xla.core.xla_model.rendezvous": rendezvous,
}
SINGLE: Mapping[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.all_reduce": all_reduce,
    "torch_xla.core.xla_model._all_gather_using_all_reduce": all_gather_using_all_reduce,
    "torch_xla.core.xla_model.all_gather": all_gather,
    "torch_xla.core.xla_model.all_gather_bucketized": all_gather_bucketized,
    "torch_xla.core.xla_model.all_to_all": all_to_all,
    "torch_xla.core.xla_model.collective_permute": collective_permute,
    "torch_xla.core.xla_model.collective_broadcast": collective_broadcast,
    "torch_xla.core.xla_model.reduce_scatter": reduce_scatter,
    "torch_xla.core.xla_model.reduce_scatter_bucketized": reduce_scatter_bucketized,
    "torch_xla.core.xla_model.all_reduce_bucketized_gradients": all_reduce_bucketized_gradients,
    "torch_xla.core.xla_model.reduce_gradients": reduce_gradients,
    "torch_xla.core.xla_model.xla_rendezvous": xla_rendezvous,
    "torch_xla.core.xla_model.do_on_ordinals": do_on_ordinals,
    "torch_xla.core.xla_model.mesh_reduce": mesh_reduce,
    "torch_xla.core.xla_model.broadcast_master_param": broadcast_master_param,
    "torch_xla.core.xla_model._get_all_reduce_token": get_all_reduce_token,
    "torch_xla.core.xla_model.save": save,
    "torch_xla.core.functions.all_reduce": differentiable_all_reduce,
    "torch_xla.core.functions.all_gather": differentiable_all_gather,
    "torch_xla.core.functions.all_gather_summed": differentiable_all_gather,
    "torch_xla.core.functions.distributed_mm": distributed_mm,
    "torch_xla.launch": launch,
}
