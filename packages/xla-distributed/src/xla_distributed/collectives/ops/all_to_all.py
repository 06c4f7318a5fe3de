"""Exchange parts of a tensor among the replicas of a group: `xm.all_to_all`."""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax import lax

from xla_core.abi.collectives import Groups
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.definition import GROUPS, define, resized
from xla_distributed.collectives.lowering import Ints, in_own_shapes, index_groups
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.threads import gathered


def _shapes(value: torch.Tensor, token: torch.Tensor, split_dim: int, concat_dim: int, count: int, *_: Any) -> Any:
    return resized(resized(value, split_dim, 1, count), concat_dim, count, 1), torch.empty_like(token)


def _lower(
    context: Context, value: jax.Array, token: jax.Array, split_dim: int, concat_dim: int, count: int, members: Ints, sizes: Ints
) -> list[jax.Array]:
    if not value.size:
        return [lax.full(context.shape, 0, value.dtype), token]

    def step(x: jax.Array) -> jax.Array:
        groups = index_groups(members, sizes)
        exchanged: jax.Array = lax.all_to_all(x, REPLICA_AXIS, split_dim, concat_dim, axis_index_groups=groups, tiled=True)
        return exchanged

    (result,), token = in_own_shapes([value], token, step)
    return [result, token]


def _among_threads(name: str, value: torch.Tensor, split: int, concat: int, count: int, members: Any, sizes: Any) -> torch.Tensor:
    by_member, position = gathered(name, [value], (split, concat), members, sizes)
    return torch.cat([tensor.chunk(count, split)[position] for (tensor,) in by_member], concat)


ALL_TO_ALL = define(
    "all_to_all",
    f"(Tensor value, Tensor token, int split_dim, int concat_dim, int count, {GROUPS}) -> (Tensor, Tensor)",
    _shapes,
    _lower,
    _among_threads,
    shown_as="xla::all_to_all",
)


def all_to_all(tensor: torch.Tensor, split_dim: int, concat_dim: int, groups: Groups) -> torch.Tensor:
    """Send part j of a tensor to member j of the group, which concatenates what arrives, in the order of the senders."""
    result: torch.Tensor = record(ALL_TO_ALL, tensor, split_dim, concat_dim, groups.size, groups=groups)
    return result
