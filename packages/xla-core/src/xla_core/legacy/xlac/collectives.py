"""Collectives by the names of `torch_xla._XLAC`: those of `xla_model`, which take a token and give the next one.

A token stands for the order of collectives. The device keeps that order by itself, so that one that is given says nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xla_core.api import collectives
from xla_core.api.collectives import get_all_reduce_token
from xla_core.api.job import world_size
from xla_core.api.step_closures import device_context
from xla_core.api.user_modules import xm

Tensor = torch.Tensor
Tensors = Sequence[Tensor]
Groups = Sequence[Sequence[int]]


def _get_all_reduce_token(device: str = "") -> Tensor:
    """The token of a device (empty: the current one), which orders the next collective after those before it."""
    return get_all_reduce_token(device or None)[0]


def _set_all_reduce_token(device: str, token: Tensor) -> None:
    """Order the next collective of a device after what `token` depends on."""
    device_context(device).all_reduce_token = token


def _next(tensor: Tensor) -> Tensor:
    return _get_all_reduce_token(str(tensor.device))


def _check_count(name: str, shard_count: int, groups: Groups) -> None:
    size = len(groups[0]) if groups else world_size()
    if shard_count != size:
        raise ValueError(f"{name}: shard_count is {shard_count}, must be the group's size, {size}")


def _xla_all_reduce(reduce_type: str, input: Tensor, scale: float, replica_groups: Groups, pin_layout: bool) -> Tensor:
    """`xm.all_reduce` of a tensor."""
    result: Tensor = xm(collectives.all_reduce)(reduce_type, input, scale, replica_groups, pin_layout)
    return result


def _xla_all_reduce_inplace(reduce_type: str, tensors: Tensors, scale: float, replica_groups: Groups, pin_layout: bool) -> None:
    """`xm.all_reduce` of a list, in place."""
    xm(collectives.all_reduce)(reduce_type, list(tensors), scale, replica_groups, pin_layout)


def _xla_all_to_all(
    input: Tensor,
    token: Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    replica_groups: Groups,
    pin_layout: bool,
) -> tuple[Tensor, Tensor]:
    """The result of `xm.all_to_all`, and a token."""
    return xm(collectives.all_to_all)(input, split_dimension, concat_dimension, split_count, replica_groups, pin_layout), _next(input)


def _xla_collective_permute(input: Tensor, token: Tensor, source_target_pairs: Groups) -> tuple[Tensor, Tensor]:
    """The result of `xm.collective_permute`, and a token."""
    return xm(collectives.collective_permute)(input, source_target_pairs), _next(input)


def _xla_send(input: Tensor, token: Tensor, channel_id: int) -> tuple[Tensor, Tensor]:
    """Raises NotImplementedError, as `xm.send`."""
    return xm(collectives.send)(input, channel_id), _next(input)


def _xla_recv(output: Tensor, token: Tensor, channel_id: int) -> tuple[Tensor, Tensor]:
    """Raises NotImplementedError, as `xm.recv`."""
    return xm(collectives.recv)(output, channel_id), _next(output)


def _xla_all_gather(input: Tensor, dim: int, shard_count: int, replica_groups: Groups, pin_layout: bool) -> Tensor:
    """`xm.all_gather` of a tensor. Raises ValueError for another shard_count than the size of the group."""
    _check_count("_xla_all_gather", shard_count, replica_groups)
    result: Tensor = xm(collectives.all_gather)(input, dim, replica_groups, pin_layout=pin_layout)
    return result


def _xla_all_gather_out(
    output: Tensor, input: Tensor, token: Tensor, dim: int, shard_count: int, replica_groups: Groups, pin_layout: bool
) -> Tensor:
    """`xm.all_gather` into `output`; a token. Raises as `_xla_all_gather`."""
    _check_count("_xla_all_gather_out", shard_count, replica_groups)
    xm(collectives.all_gather)(input, dim, replica_groups, output, pin_layout)
    return _next(output)


def _xla_all_gather_coalesced(
    inputs: Tensors, token: Tensor, dim: int, shard_count: int, replica_groups: Groups, pin_layout: bool
) -> list[Tensor]:
    """The results of `xm.all_gather` of a list, and behind them a token. Raises as `_xla_all_gather`."""
    _check_count("_xla_all_gather_coalesced", shard_count, replica_groups)
    return [*xm(collectives.all_gather)(list(inputs), dim, replica_groups, pin_layout=False), _next(token)]


def _xla_all_gather_coalesced_out(
    outputs: Tensors, inputs: Tensors, token: Tensor, dim: int, shard_count: int, replica_groups: Groups, pin_layout: bool
) -> Tensor:
    """`xm.all_gather` of a list into `outputs`; a token. Raises as `_xla_all_gather`."""
    _check_count("_xla_all_gather_coalesced_out", shard_count, replica_groups)
    xm(collectives.all_gather)(list(inputs), dim, replica_groups, list(outputs), False)
    return _next(token)


def _xla_reduce_scatter(
    reduce_type: str,
    input: Tensor,
    token: Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    replica_groups: Groups,
    pin_layout: bool,
) -> tuple[Tensor, Tensor]:
    """The result of `xm.reduce_scatter`, and a token."""
    return xm(collectives.reduce_scatter)(reduce_type, input, scale, scatter_dim, shard_count, replica_groups, None, pin_layout), _next(
        input
    )


def _xla_reduce_scatter_out(
    reduce_type: str,
    output: Tensor,
    input: Tensor,
    token: Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    replica_groups: Groups,
    pin_layout: bool,
) -> Tensor:
    """`xm.reduce_scatter` into `output`; a token."""
    xm(collectives.reduce_scatter)(reduce_type, input, scale, scatter_dim, shard_count, replica_groups, output, pin_layout)
    return _next(output)


def _xla_reduce_scatter_coalesced(
    reduce_type: str,
    inputs: Tensors,
    token: Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    replica_groups: Groups,
    pin_layout: bool,
) -> list[Tensor]:
    """The results of `xm.reduce_scatter` of a list, and behind them a token."""
    return [
        *xm(collectives.reduce_scatter)(reduce_type, list(inputs), scale, scatter_dim, shard_count, replica_groups, None, False),
        _next(token),
    ]


def _xla_reduce_scatter_coalesced_out(
    reduce_type: str,
    outputs: Tensors,
    inputs: Tensors,
    token: Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    replica_groups: Groups,
    pin_layout: bool,
) -> Tensor:
    """`xm.reduce_scatter` of a list into `outputs`; a token."""
    xm(collectives.reduce_scatter)(reduce_type, list(inputs), scale, scatter_dim, shard_count, replica_groups, list(outputs), False)
    return _next(token)


def _xla_spmd_all_reduce(reduce_type: str, input: Tensor, scale: float, replica_groups: Groups) -> Tensor:
    """`xm.all_reduce` of a local shard over groups of devices, in a manual region."""
    result: Tensor = xm(collectives.all_reduce)(reduce_type, input, scale, replica_groups)
    return result


def _xla_spmd_reduce_scatter(
    reduce_type: str, input: Tensor, scale: float, scatter_dim: int, shard_count: int, replica_groups: Groups
) -> Tensor:
    """`xm.reduce_scatter` of a local shard over groups of devices, in a manual region."""
    result: Tensor = xm(collectives.reduce_scatter)(reduce_type, input, scale, scatter_dim, shard_count, replica_groups)
    return result
