"""Send a tensor from replica to replica, by pairs: `xm.collective_permute`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import lax

from xla_core.abi.job import world_size
from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.arguments import check_on_device
from xla_distributed.collectives.definition import define, shape_of_input
from xla_distributed.collectives.lowering import Ints, flatten, in_order
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.threads import gathered


def _lower(context: Context, value: jax.Array, token: jax.Array, pairs: Ints) -> list[jax.Array]:
    if not value.size or not pairs:
        return [lax.full_like(value, 0), token]
    routes = list(zip(pairs[::2], pairs[1::2], strict=True))
    result, token = in_order(flatten(value), token, lambda flat: lax.ppermute(flat, REPLICA_AXIS, routes))
    return [lax.reshape(result, value.shape), token]


def _among_threads(name: str, value: torch.Tensor, pairs: Sequence[int]) -> torch.Tensor:
    everyone, place = gathered(name, [value], (pairs,))
    source = {target: source for source, target in zip(pairs[::2], pairs[1::2], strict=True)}.get(place)
    return torch.zeros_like(value) if source is None else everyone[source][0].clone()  # others may still read what the source gave


COLLECTIVE_PERMUTE = define(
    "collective_permute",
    "(Tensor value, Tensor token, int[] pairs) -> (Tensor, Tensor)",
    shape_of_input,
    _lower,
    _among_threads,
    shown_as="xla::collective_permute",
)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """Send a tensor from the source of each pair of ordinals to its target: same shape and dtype; zeros for whom nothing arrives.

    Raises ValueError for an ordinal that is out of range, or twice a source or twice a target.
    """
    check_on_device("collective_permute", [value])
    routes = [(int(source), int(target)) for source, target in pairs]
    count = world_size()
    for side in zip(*routes, strict=True):
        if len(set(side)) != len(side) or any(not 0 <= ordinal < count for ordinal in side):
            raise ValueError(f"collective_permute: pairs name each source and target once, from 0 to {count - 1}, got {routes}")
    result: torch.Tensor = record(COLLECTIVE_PERMUTE, value, [ordinal for route in routes for ordinal in route])
    return result


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.collective_permute": collective_permute,
}
