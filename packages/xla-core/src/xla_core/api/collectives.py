"""The collectives of `xm`: signatures, checks of arguments, docstrings. What is done then is a backend's: of one replica, or a plugin's.

A check only looks and records nothing, so that one replica and many refuse the same calls with the same words, before any replica waits for
another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.api import one_replica, plugins
from xla_core.api.backends import CollectiveBackend
from xla_core.api.collective_arguments import check_output, check_tensors, dimension, even_groups_of, groups_of, tensor_list
from xla_core.api.job import is_spmd
from xla_core.api.reductions import parse_reduce_op
from xla_core.api.replica_groups import Groups, ReplicaGroups
from xla_core.api.step_closures import DeviceContext, device_context
from xla_core.api.user_modules import runtime, xm
from xla_core.base.budgets import budget
from xla_core.base.errors import UnsupportedOperationError
from xla_core.base.installation import DISTRIBUTED
from xla_core.engine.runtime.client import device_kind

# Budgets: a collective is recorded, and compiles nothing; but threads of one process, and members of a group alone, exchange at once.


def is_alone(between_devices: bool = False) -> bool:
    """Whether this replica waits for nobody: it is the only one.

    between_devices: for a collective that, in SPMD mode, which has one replica, acts between the devices of a manual region.
    """
    # By the user's module: what was replaced there counts.
    return bool(runtime().world_size() == 1 and not (between_devices and runtime().is_spmd()))


def backend(name: str, between_devices: bool = False) -> CollectiveBackend:
    """The backend for a collective of this name. Raises MissingPackageError where several replicas have none. See `is_alone`."""
    # `is_alone`, without the call.
    if runtime().world_size() == 1 and not (between_devices and runtime().is_spmd()):
        return one_replica
    several = plugins.collectives()
    if several is None:
        raise plugins.missing(f"torch_xla.core.xla_model.{name}", DISTRIBUTED)
    return several


def _write(targets: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Copy results to tensors in place, as one operation: a hundred small ones would cost more than their collective."""
    if results is not targets:
        with torch.no_grad():
            torch._foreach_copy_(list(targets), list(results))


def _returned(value: Any, results: Sequence[torch.Tensor], output: Any) -> Any:
    """What a collective returns for `value`: the results, or `output` filled with them if it is there; a list for a list."""
    if output is None:
        return results[0] if isinstance(value, torch.Tensor) else list(results)
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return output.copy_(results[0])
    _write(output, results)
    return output


@budget(compiles=None)
def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: ReplicaGroups = None, pin_layout: bool = True) -> Any:
    """Reduce tensors over the replicas of a group: a new tensor for a tensor; a list or tuple is updated in place and returned.

    reduce_type: sum, mul, and, or, xor, min or max. scale: what results are multiplied by; one replica on its own does so under
    `XLA_ALWAYS_ALLREDUCE` only. groups: lists of ordinals that name each replica once; None: one group of all. pin_layout: has no effect.
    All replicas must call it, and all collectives in one order.
    Raises ValueError for an unknown reduction or bad groups, TypeError for a dtype that does not have the reduction.
    """
    single = isinstance(inputs, torch.Tensor)
    tensors = [inputs] if single else list(inputs)
    check_tensors("all_reduce", tensors)
    op = parse_reduce_op(reduce_type)
    op.check_dtypes(tensors)
    replicas = groups_of(groups)
    if not tensors:
        return inputs
    results = backend("all_reduce", between_devices=True).all_reduce(op, tensors, float(scale), replicas)
    if single:
        return results[0].clone() if results[0] is inputs else results[0]
    _write(tensors, results)
    return inputs


@budget(compiles=None)
def all_gather(
    value: Any,
    dim: int = 0,
    groups: ReplicaGroups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Concatenate the tensors of a group along `dim`, in the group's order: that dimension becomes as many times larger as the group is.

    value: a tensor, or a list with pin_layout=False, for which a list is returned. output: is written to and returned. groups: as of
    `all_reduce`, of one size. channel_id, use_global_device_ids: have no effect.
    Raises RuntimeError for a list with pin_layout, AssertionError for groups of several sizes, IndexError for a dimension out of range.
    """
    tensors = tensor_list("all_gather", value, pin_layout)
    check_output("all_gather", value, output)
    dims = [dimension(tensor, dim) for tensor in tensors]
    replicas = even_groups_of(groups, "all_gather")
    gather = backend("all_gather", between_devices=True).all_gather
    results = _along(dims, tensors, lambda chosen, dim: gather(chosen, dim, replicas))
    return _returned(value, results, output)


def _along(
    dims: list[int], tensors: list[torch.Tensor], collective: Callable[[list[torch.Tensor], int], Sequence[torch.Tensor]]
) -> Sequence[torch.Tensor]:
    """One collective of all tensors, or one of each where a dimension counted from the last is another one of each."""
    if not tensors:
        return []
    if len(set(dims)) == 1:
        return collective(tensors, dims[0])
    return [collective([tensor], dim)[0] for tensor, dim in zip(tensors, dims, strict=True)]


@budget(compiles=None)
def all_gather_using_all_reduce(value: torch.Tensor, dim: int = 0, groups: ReplicaGroups = None, pin_layout: bool = True) -> torch.Tensor:
    """As `all_gather` of a tensor, by a sum in which each replica adds its tensor to zeros."""
    check_tensors("all_gather", [value])
    dim = dimension(value, dim)
    replicas = even_groups_of(groups, "all_gather")
    if is_spmd() or is_alone():  # in SPMD mode no host knows which part it pads
        whole: torch.Tensor = xm(all_gather)(value, dim, groups, pin_layout=pin_layout)
        return whole
    size = value.size(dim)
    padding = [0] * (2 * value.dim())
    last = 2 * (value.dim() - 1 - dim)  # torch counts dimensions from the last
    padding[last : last + 2] = [replicas.position * size, (replicas.size - 1 - replicas.position) * size]
    with torch.no_grad():
        padded = torch.nn.functional.pad(value, padding)
    result: torch.Tensor = xm(all_reduce)("sum", padded, groups=groups, pin_layout=pin_layout)
    return result


@budget(compiles=None)
def reduce_scatter(
    reduce_type: str,
    input: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: ReplicaGroups = None,
    output: Any = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> Any:
    """Reduce tensors over a group and keep this replica's shard of the result along `scatter_dim`, which shrinks by `shard_count`.

    reduce_type: as of `all_reduce`. scale: what results are multiplied by. input, groups, output: as value, groups and output of
    `all_gather`. shard_count: the size of the group. channel_id, use_global_device_ids: have no effect.
    Raises ValueError for another shard_count and for a dimension that it does not divide; else as `all_reduce` and `all_gather`.
    """
    tensors = tensor_list("reduce_scatter", input, pin_layout)
    check_output("reduce_scatter", input, output)
    op = parse_reduce_op(reduce_type)
    op.check_dtypes(tensors)
    dims = [dimension(tensor, scatter_dim) for tensor in tensors]
    replicas = even_groups_of(groups, "reduce_scatter")
    if shard_count != replicas.size:
        raise ValueError(f"reduce_scatter: shard_count is {shard_count}, must be the group's size, {replicas.size}")
    for tensor, dim in zip(tensors, dims, strict=True):
        _check_divisible("reduce_scatter", tensor, dim, shard_count)
    scatter = backend("reduce_scatter", between_devices=True).reduce_scatter
    results = _along(dims, tensors, lambda chosen, dim: scatter(op, chosen, float(scale), dim, replicas))
    return _returned(input, results, output)


def _check_divisible(name: str, tensor: torch.Tensor, dim: int, size: int) -> None:
    if tensor.size(dim) % size:
        raise ValueError(f"{name}: dimension {dim} of {tuple(tensor.shape)} is not divisible by {size} members")


@budget(compiles=None)
def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: ReplicaGroups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Send part j of a tensor to replica j of the group, and concatenate what arrives, in the order of the senders.

    split_dimension: is cut into parts; concat_dimension: grows. split_count: the size of the group. groups: as of `all_gather`.
    Raises ValueError for another split_count and for a dimension that it does not divide.
    """
    check_tensors("all_to_all", [value])
    split, concat = dimension(value, split_dimension), dimension(value, concat_dimension)
    replicas = even_groups_of(groups, "all_to_all")
    if split_count != replicas.size:
        raise ValueError(f"all_to_all: split_count is {split_count}, must be the group's size, {replicas.size}")
    _check_divisible("all_to_all", value, split, split_count)
    return backend("all_to_all", between_devices=True).all_to_all(value, split, concat, replicas)


@budget(compiles=None)
def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Send a tensor from the source of each pair of ordinals to its target: same shape and dtype; zeros for whom nothing arrives.

    Raises ValueError for an ordinal that is out of range, or twice a source or twice a target.
    """
    check_tensors("collective_permute", [value])
    routes = [(int(source), int(target)) for source, target in pairs]
    count = groups_of(None).size
    for side in zip(*routes, strict=True):
        if len(set(side)) != len(side) or any(not 0 <= ordinal < count for ordinal in side):
            raise ValueError(f"collective_permute: pairs name each source and target once, from 0 to {count - 1}, got {routes}")
    return backend("collective_permute", between_devices=True).permute(value, routes)


@budget(compiles=None)
def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: ReplicaGroups = None, pin_layout: bool = True) -> None:
    """Give tensors the values that they have on replica `root_ordinal`, in place. groups: as of `all_reduce`, each with the root.

    Raises ValueError for a group without it.
    """
    check_tensors("collective_broadcast", tensors)
    replicas = groups_of(groups)
    without = [list(group) for group in groups or [range(replicas.size)] if root_ordinal not in group]
    if without:
        raise ValueError(f"collective_broadcast: root_ordinal {root_ordinal} is not in the groups {without}")
    members = replicas.apart or replicas.members
    broadcast_from(members.index(root_ordinal) if members else root_ordinal, tensors, replicas)


def broadcast_from(position: int, tensors: Sequence[torch.Tensor], groups: Groups) -> None:
    """All tensors take, in place, the values of the replica at a position of their group."""
    if tensors:
        listed = list(tensors)
        _write(listed, backend("collective_broadcast", between_devices=True).broadcast(listed, position, groups))


def _no_point_to_point(name: str) -> UnsupportedOperationError:
    kind = device_kind()
    text = f"{name}: {kind} devices have no transfers between two replicas of a program; use xm.collective_permute, which all run"
    return UnsupportedOperationError(text)


@budget()
def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Raises NotImplementedError: a program does not know the receiver."""
    raise _no_point_to_point("send")


@budget()
def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Raises NotImplementedError: a program does not know the sender; `collective_permute` sends among all replicas."""
    raise _no_point_to_point("recv")


def get_all_reduce_token(device: str | None = None) -> tuple[torch.Tensor, DeviceContext]:
    """The token that orders a device's (None: the current one's) next collective after those before it, and the context that keeps it."""
    context = device_context(device)
    token = context.all_reduce_token
    if token is None:
        with torch.inference_mode(False):  # it is written to for as long as the process lives, inside and outside of that mode
            context.all_reduce_token = torch.zeros((), dtype=torch.uint8).to(context.device)
        token = context.all_reduce_token
    return token, context


def other_collective(name: str) -> Callable[..., Any]:
    """The `__getattr__` of `torch_xla.core.xla_model`: a collective of the plugin's that the core does not know. Raises AttributeError."""
    # Python and its tools ask for names with underscores: no reason to load plugins.
    several = None if name.startswith("_") else plugins.collectives()
    if several is None or name not in several.others:
        raise AttributeError(f"module 'torch_xla.core.xla_model' has no attribute {name!r}")
    return several.others[name]
