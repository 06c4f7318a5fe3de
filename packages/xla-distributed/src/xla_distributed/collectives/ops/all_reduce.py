"""Reduce tensors over the replicas of a group: `xm.all_reduce`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch

from xla_core.abi.collectives import Groups, ReduceOp
from xla_core.abi.operators import Context
from xla_distributed.collectives.definition import GROUPS, Tensors, define, shapes_of_inputs
from xla_distributed.collectives.lowering import Ints, elementwise, in_own_shapes, index_groups, join, split_as, together
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.reductions import reduced, reduced_among_threads, scaled
from xla_distributed.collectives.threads import gathered


def _lower(
    context: Context, inputs: list[jax.Array], token: jax.Array, reduction: str, scale: Any, members: Ints, sizes: Ints
) -> list[jax.Array]:
    groups = index_groups(members, sizes)

    def total(x: jax.Array) -> jax.Array:
        return scaled(reduced(x, ReduceOp(reduction), groups), scale)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = join(tensors)
        # Nothing to make a token of; shapes are the same everywhere, so no replica sends.
        if not flat.size:
            return tensors, token
        result, token = elementwise(flat, token, total)
        return split_as(result, tensors), token

    results, token = together(inputs, token, step) if context.platform == "cpu" else in_own_shapes(inputs, token, total)
    return [*results, token]


def _among_threads(name: str, inputs: Tensors, reduction: str, scale: float, members: Any, sizes: Any) -> list[torch.Tensor]:
    """Tensors of one dtype travel together."""
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in inputs:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    flat = [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in by_dtype.values()]
    by_member, _ = gathered(name, flat, (reduction, scale), members, sizes)
    totals = zip(by_dtype.items(), reduced_among_threads(by_member, ReduceOp(reduction), scale), strict=True)
    parts = {dtype: iter(total.split([tensor.numel() for tensor in tensors])) for (dtype, tensors), total in totals}
    return [next(parts[tensor.dtype]).reshape(tensor.shape) for tensor in inputs]


ALL_REDUCE = define(
    "all_reduce",
    f"(Tensor[] inputs, Tensor token, str reduction, float scale, {GROUPS}) -> (Tensor[], Tensor)",
    shapes_of_inputs,
    _lower,
    _among_threads,
    scalars=["scale"],
    shown_as="xla::cross_replica_sum",
)


def all_reduce(op: ReduceOp, tensors: Tensors, scale: float, groups: Groups) -> Tensors:
    """The reduction of each tensor over the members of a group, times `scale`."""
    results: Tensors = record(ALL_REDUCE, tensors, op.value, scale, groups=groups)
    return results
