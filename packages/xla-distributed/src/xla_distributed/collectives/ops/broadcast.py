"""Give tensors the values of one replica of the group: `xm.collective_broadcast`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax

from xla_core.abi.job import world_size
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.arguments import check_on_device, write
from xla_distributed.collectives.definition import GROUPS, Tensors, define, shapes_of_inputs
from xla_distributed.collectives.groups import ReplicaGroups, groups_of
from xla_distributed.collectives.lowering import (
    Ints,
    elementwise,
    from_bits,
    index_groups,
    join,
    place_in_group,
    split_as,
    to_bits,
    together,
)
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.threads import gathered


def _lower(context: Context, inputs: list[jax.Array], token: jax.Array, place: int, members: Ints, sizes: Ints) -> list[jax.Array]:
    groups = index_groups(members, sizes)
    is_root = place_in_group(groups) == place

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = join(tensors)
        if not flat.size:
            return tensors, token

        def bits_of_root(x: jax.Array) -> jax.Array:
            # As integers: a sum with zeros keeps every bit, of NaN and -0.0 too.
            bits = to_bits(x)
            kept = lax.select(lax.broadcast(is_root, bits.shape), bits, lax.full_like(bits, 0))
            return from_bits(lax.psum(kept, REPLICA_AXIS, axis_index_groups=groups), x.dtype)

        result, token = elementwise(flat, token, bits_of_root)
        return split_as(result, tensors), token

    results, token = together(inputs, token, step)
    return [*results, token]


def _among_threads(name: str, inputs: Tensors, root: int, members: Any, sizes: Any) -> list[torch.Tensor]:
    everyone, _ = gathered(name, inputs, (root,), members, sizes)
    return everyone[root]


BROADCAST = define(
    "broadcast",
    f"(Tensor[] inputs, Tensor token, int place, {GROUPS}) -> (Tensor[], Tensor)",
    shapes_of_inputs,
    _lower,
    _among_threads,
)


def collective_broadcast(tensors: list[torch.Tensor], root_ordinal: int = 0, groups: ReplicaGroups = None, pin_layout: bool = True) -> None:
    """Give tensors the values that they have on replica `root_ordinal`, in place. groups: as of `all_reduce`, each with the root.

    Raises ValueError for a group without it.
    """
    check_on_device("collective_broadcast", tensors)
    found = groups_of(groups)
    without = [list(group) for group in groups or [range(world_size())] if root_ordinal not in group]
    if without:
        raise ValueError(f"collective_broadcast: root_ordinal {root_ordinal} is not in the groups {without}")
    members = found.apart or found.members
    broadcast_from(members.index(root_ordinal) if members else root_ordinal, tensors, groups)


def broadcast_from(place: int, tensors: Sequence[torch.Tensor], groups: ReplicaGroups) -> None:
    """All tensors take, in place, the values of the replica at a place of their group."""
    if not tensors or world_size() == 1:
        return
    found = groups_of(groups)
    write(tensors, record(BROADCAST, list(tensors), place, groups=found))


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.collective_broadcast": collective_broadcast,
}
