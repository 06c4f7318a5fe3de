"""Give tensors the values of one replica of the group: `xm.collective_broadcast`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.abi.collectives import Groups, ReplicaGroups, groups_of
from xla_core.abi.job import world_size
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.definition import GROUPS, Tensors, define, shapes_of_inputs
from xla_distributed.collectives.lowering import (
    Ints,
    elementwise,
    from_bits,
    in_own_shapes,
    index_groups,
    join,
    place_in_group,
    split_as,
    to_bits,
    together,
)
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.threads import gathered


def _lower(context: Context, inputs: list[jax.Array], token: jax.Array, position: int, members: Ints, sizes: Ints) -> list[jax.Array]:
    groups = index_groups(members, sizes)
    is_root = place_in_group(groups) == position

    def of_root(x: jax.Array) -> jax.Array:
        if jax.numpy.issubdtype(x.dtype, np.complexfloating):
            return lax.complex(of_root(lax.real(x)), of_root(lax.imag(x)))
        # As integers: a sum with zeros keeps every bit, of NaN and -0.0 too.
        bits = to_bits(x)
        root_bits = lax.select(lax.broadcast(is_root, bits.shape), bits, lax.full_like(bits, 0))
        return from_bits(lax.psum(root_bits, REPLICA_AXIS, axis_index_groups=groups), x.dtype)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = join(tensors)
        if not flat.size:
            return tensors, token
        result, token = elementwise(flat, token, of_root)
        return split_as(result, tensors), token

    results, token = together(inputs, token, step) if context.platform == "cpu" else in_own_shapes(inputs, token, of_root)
    return [*results, token]


def _among_threads(name: str, inputs: Tensors, root: int, members: Any, sizes: Any) -> list[torch.Tensor]:
    by_member, _ = gathered(name, inputs, (root,), members, sizes)
    return by_member[root]


BROADCAST = define(
    "broadcast",
    f"(Tensor[] inputs, Tensor token, int position, {GROUPS}) -> (Tensor[], Tensor)",
    shapes_of_inputs,
    _lower,
    _among_threads,
)


def broadcast(tensors: Tensors, position: int, groups: Groups) -> Tensors:
    """The tensors of the member at this position of the group."""
    results: Tensors = record(BROADCAST, tensors, position, groups=groups)
    return results


def broadcast_from(position: int, tensors: Tensors, groups: ReplicaGroups) -> None:
    """Overwrite tensors with the values of the member at this position of their group."""
    if tensors and world_size() > 1:
        with torch.no_grad():
            torch._foreach_copy_(list(tensors), list(broadcast(list(tensors), position, groups_of(groups))))
