"""The collectives of `torch_xla.core.xla_model` among several replicas. With one, the core serves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.abi import is_manual
from xla_distributed import connection, meeting, ops, threads
from xla_distributed.errors import JobError, ModeError
from xla_distributed.groups import Given, even_groups_of, groups_of

_REDUCTIONS = ("sum", "mul", "and", "or", "min", "max")


def get_all_reduce_token() -> tuple[torch.Tensor, Any]:
    """The token that orders the next collective after those before it, and the device's context, which keeps it."""
    context = xm._get_device_context()
    if context.all_reduce_token is None:
        with torch.inference_mode(False):  # it is written to for as long as the process lives, inside and outside of that mode
            context.all_reduce_token = torch.zeros((), dtype=torch.uint8).to(context.device)
    return context.all_reduce_token, context


def _record(operation: Any, inputs: Any, *rest: Any) -> Any:
    """Record a collective behind those before it; its results."""
    if meeting.joined():
        with torch.no_grad():
            return threads.run(operation, inputs, *rest)
    if xr.is_spmd():
        _check_in_region(str(operation).split(".")[1], [inputs] if isinstance(inputs, torch.Tensor) else inputs)
    else:
        connection.member()  # raises if there are no others
    token, context = get_all_reduce_token()
    with torch.no_grad():
        results, context.all_reduce_token = operation(inputs, token, *rest)
    return results


def _check_in_region(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise ModeError unless all tensors are parts, in a manual region."""
    whole = next((tensor for tensor in tensors if not is_manual(tensor)), None)
    if whole is not None:
        raise ModeError(
            f"{name} of a tensor of shape {tuple(whole.shape)}: in SPMD mode there is one replica and the compiler places collectives. "
            "Call it on parts, between enable_manual_sharding and disable_manual_sharding, or leave it out"
        )


def _write(targets: list[torch.Tensor], results: list[torch.Tensor]) -> None:
    """In place, as one operation: a hundred small ones would cost more than their collective."""
    with torch.no_grad():
        torch._foreach_copy_(targets, results)


def check_reduction(reduce_type: str, *tensors: torch.Tensor) -> None:
    """Raise ValueError for an unknown reduction, TypeError for one that a dtype does not have."""
    if reduce_type not in _REDUCTIONS:
        raise ValueError(f"reduce_type is {reduce_type!r}, must be one of {', '.join(_REDUCTIONS)}")
    for tensor in tensors:
        if reduce_type in ("and", "or") and (tensor.is_floating_point() or tensor.is_complex()):
            raise TypeError(f"reduce_type {reduce_type!r} is for booleans and integers, got {tensor.dtype}")
        if reduce_type in ("min", "max") and tensor.is_complex():
            raise TypeError(f"reduce_type {reduce_type!r} needs an order, which {tensor.dtype} has not")


def _check_on_device(name: str, *tensors: Any) -> None:
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} takes tensors, got {type(tensor).__name__}")
        if tensor.device.type != "xla":
            raise RuntimeError(f"{name}: Input tensor is not an XLA tensor: {tensor.type()}")


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: Given = None, pin_layout: bool = True) -> Any:
    """A new tensor for a tensor; a list or tuple is updated in place and returned."""
    single = isinstance(inputs, torch.Tensor)
    tensors = [inputs] if single else list(inputs)
    _check_on_device("all_reduce", *tensors)
    check_reduction(reduce_type, *tensors)
    found = groups_of(groups)
    if not tensors:
        return inputs
    results = _record(ops.all_reduce, tensors, reduce_type, float(scale), found.members, found.sizes)
    if single:
        return results[0]
    _write(tensors, results)
    return inputs


def _dimension(tensor: torch.Tensor, dim: int) -> int:
    tensor.size(dim)  # raises what torch raises for a dimension that is not there
    return dim % tensor.dim()


def _listed(name: str, value: Any, pin_layout: bool) -> list[torch.Tensor]:
    """The tensors of an argument that is one or a list."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, torch.Tensor) for item in value):
        raise TypeError(f"{name} takes a tensor or a list of tensors, got {type(value).__name__}")
    if pin_layout:
        raise RuntimeError(f"{name} of a list needs pin_layout=False")
    return value


def _given_back(name: str, value: Any, results: list[torch.Tensor], output: Any) -> Any:
    """Results as the caller wants them: written to `output` if it is there, a list for a list."""
    if isinstance(value, torch.Tensor):
        if output is None:
            return results[0]
        if not isinstance(output, torch.Tensor):
            raise TypeError(f"{name}: output for a tensor must be a tensor, got {type(output).__name__}")
        with torch.no_grad():
            return output.copy_(results[0])
    if output is None:
        return results
    _write(output, results)
    return output


def _check_output(name: str, value: Any, output: Any) -> None:
    if output is None or isinstance(value, torch.Tensor):
        return
    if not isinstance(output, list) or not all(isinstance(item, torch.Tensor) for item in output):
        raise TypeError(f"{name}: output for a list must be a list of tensors, got {type(output).__name__}")
    if len(output) != len(value):
        raise ValueError(f"{name}: output has {len(output)} tensors for {len(value)} inputs")


def all_gather(
    value: Any,
    dim: int = 0,
    groups: Given = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """The members' tensors joined along `dim`, in the order of the group."""
    tensors = _listed("all_gather", value, pin_layout)
    _check_output("all_gather", value, output)
    _check_on_device("all_gather", *tensors)
    found = even_groups_of(groups, "all_gather")
    if not tensors:
        return _given_back("all_gather", value, [], output)
    dims = {_dimension(tensor, dim) for tensor in tensors}
    if len(dims) == 1:
        results = _record(ops.all_gather, tensors, dims.pop(), found.size, found.members, found.sizes)
    else:  # a negative dim of tensors with different ranks
        results = [all_gather(tensor, dim, groups, pin_layout=False) for tensor in tensors]
    return _given_back("all_gather", value, results, output)


def all_gather_using_all_reduce(value: torch.Tensor, dim: int = 0, groups: Given = None, pin_layout: bool = True) -> torch.Tensor:
    """As `all_gather`, by a sum in which each member adds its part to zeros."""
    if xr.is_spmd():  # no host knows which part it pads
        gathered: torch.Tensor = xm.all_gather(value, dim, groups, pin_layout=pin_layout)
        return gathered
    found = even_groups_of(groups, "all_gather")
    dim = _dimension(value, dim)
    size = value.size(dim)
    padding = [0] * (2 * value.dim())
    last = 2 * (value.dim() - 1 - dim)  # torch counts dimensions from the last
    padding[last : last + 2] = [found.place * size, (found.size - 1 - found.place) * size]
    with torch.no_grad():
        padded = torch.nn.functional.pad(value, padding)
    result: torch.Tensor = xm.all_reduce("sum", padded, groups=groups, pin_layout=pin_layout)
    return result


def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Given = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """This member's part of the reduced tensors, cut along `scatter_dim`."""
    tensors = _listed("reduce_scatter", input, pin_layout)
    _check_output("reduce_scatter", input, output)
    _check_on_device("reduce_scatter", *tensors)
    check_reduction(reduce_type, *tensors)
    found = even_groups_of(groups, "reduce_scatter")
    if shard_count != found.size:
        raise ValueError(f"reduce_scatter: shard_count is {shard_count}, must be the group's size, {found.size}")
    if not tensors:
        return _given_back("reduce_scatter", input, [], output)
    dims = [_dimension(tensor, scatter_dim) for tensor in tensors]
    for tensor, dim in zip(tensors, dims, strict=True):
        if tensor.size(dim) % shard_count:
            raise ValueError(f"reduce_scatter: dimension {dim} of {tuple(tensor.shape)} is not divisible by {shard_count} members")
    if len(set(dims)) == 1:
        rest = (reduce_type, float(scale), dims[0], shard_count, found.members, found.sizes)
        results = _record(ops.reduce_scatter, tensors, *rest)
    else:
        results = [reduce_scatter(reduce_type, tensor, scale, scatter_dim, shard_count, groups) for tensor in tensors]
    return _given_back("reduce_scatter", input, results, output)


def all_to_all(
    value: torch.Tensor, split_dimension: int, concat_dimension: int, split_count: int, groups: Given = None, pin_layout: bool = True
) -> torch.Tensor:
    """Part j of each member goes to member j; what arrives is joined in the order of the senders."""
    _check_on_device("all_to_all", value)
    found = even_groups_of(groups, "all_to_all")
    if split_count != found.size:
        raise ValueError(f"all_to_all: split_count is {split_count}, must be the group's size, {found.size}")
    split, concat = _dimension(value, split_dimension), _dimension(value, concat_dimension)
    if value.size(split) % split_count:
        raise ValueError(f"all_to_all: dimension {split} of {tuple(value.shape)} is not divisible by {split_count} members")
    result: torch.Tensor = _record(ops.all_to_all, value, split, concat, split_count, found.members, found.sizes)
    return result


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Send from the source of each pair to its target; others get zeros."""
    _check_on_device("collective_permute", value)
    routes = [(int(source), int(target)) for source, target in pairs]
    count = int(xr.world_size())
    for side in zip(*routes, strict=True):
        if len(set(side)) != len(side) or any(not 0 <= ordinal < count for ordinal in side):
            raise ValueError(f"collective_permute: pairs name each source and target once, from 0 to {count - 1}, got {routes}")
    result: torch.Tensor = _record(ops.collective_permute, value, [ordinal for route in routes for ordinal in route])
    return result


def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: Given = None, pin_layout: bool = True) -> None:
    """All tensors take the root's values, in place."""
    _check_on_device("collective_broadcast", *tensors)
    found = groups_of(groups)
    homes = [group for group in groups or [range(int(xr.world_size()))] if root_ordinal not in group]
    if homes:
        raise ValueError(f"collective_broadcast: root_ordinal {root_ordinal} is not in the groups {[list(group) for group in homes]}")
    broadcast_from(found.members.index(root_ordinal) if found.members else root_ordinal, tensors, groups)


def broadcast_from(place: int, tensors: Sequence[torch.Tensor], groups: Given) -> None:
    """All tensors take, in place, the values of the replica at a place of their group."""
    if not tensors or xr.world_size() == 1:
        return
    found = groups_of(groups)
    _write(list(tensors), _record(ops.broadcast, list(tensors), place, found.members, found.sizes))


def _point_to_point(name: str) -> JobError:
    return _NoPointToPoint(
        f"{name}: {xr.device_type()} devices have no transfers between two replicas of a program; use xm.collective_permute, which all run"
    )


class _NoPointToPoint(JobError, NotImplementedError):
    """The hardware has no point-to-point transfers."""


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Raises NotImplementedError: a program cannot know who receives."""
    raise _point_to_point("send")


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Raises NotImplementedError."""
    raise _point_to_point("recv")
