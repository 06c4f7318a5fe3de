"""Send a tensor from replica to replica, by pairs: `xm.collective_permute`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch
from jax import lax

from xla_core.abi.operators import REPLICA_AXIS, Context
from xla_distributed.collectives.definition import define, shape_of_input
from xla_distributed.collectives.lowering import Ints, in_own_shapes
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.threads import gathered


def _lower(context: Context, value: jax.Array, token: jax.Array, pairs: Ints) -> list[jax.Array]:
    if not value.size or not pairs:
        return [lax.full_like(value, 0), token]
    routes = list(zip(pairs[::2], pairs[1::2], strict=True))
    (result,), token = in_own_shapes([value], token, lambda x: lax.ppermute(x, REPLICA_AXIS, routes))
    return [result, token]


def _among_threads(name: str, value: torch.Tensor, pairs: Sequence[int]) -> torch.Tensor:
    by_ordinal, position = gathered(name, [value], (pairs,))
    source = {target: source for source, target in zip(pairs[::2], pairs[1::2], strict=True)}.get(position)
    return torch.zeros_like(value) if source is None else by_ordinal[source][0].clone()  # others may still read what the source gave


COLLECTIVE_PERMUTE = define(
    "collective_permute",
    "(Tensor value, Tensor token, int[] pairs) -> (Tensor, Tensor)",
    shape_of_input,
    _lower,
    _among_threads,
    shown_as="xla::collective_permute",
)


def permute(tensor: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The tensor of the replica that is the source of this one in `pairs` (source, target); zeros where there is none."""
    result: torch.Tensor = record(COLLECTIVE_PERMUTE, tensor, [ordinal for pair in pairs for ordinal in pair])
    return result
