"""Reduce tensors over the replicas of a group: `xm.all_reduce`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from xla_core.abi.collectives import ReduceOp, parse_reduce_op
from xla_core.abi.operators import Context
from xla_distributed.collectives.arguments import check_on_device, write
from xla_distributed.collectives.definition import GROUPS, Tensors, define, shapes_of_inputs
from xla_distributed.collectives.groups import ReplicaGroups, groups_of
from xla_distributed.collectives.lowering import Ints, elementwise, index_groups, join, split_as, together
from xla_distributed.collectives.recording import record
from xla_distributed.collectives.reductions import reduced, reduced_among_threads, scaled
from xla_distributed.collectives.threads import gathered


def _lower(
    context: Context, inputs: list[jax.Array], token: jax.Array, reduction: str, scale: Any, members: Ints, sizes: Ints
) -> list[jax.Array]:
    groups = index_groups(members, sizes)

    def step(tensors: Sequence[jax.Array], token: jax.Array) -> Any:
        flat = join(tensors)
        # Nothing to make a token of; shapes are the same everywhere, so no replica sends.
        if not flat.size:
            return tensors, token
        result, token = elementwise(flat, token, lambda x: scaled(reduced(x, ReduceOp(reduction), groups), scale))
        return split_as(result, tensors), token

    results, token = together(inputs, token, step)
    return [*results, token]


def _among_threads(name: str, inputs: Tensors, reduction: str, scale: float, members: Any, sizes: Any) -> list[torch.Tensor]:
    """Tensors of one dtype travel together."""
    kinds: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in inputs:
        kinds.setdefault(tensor.dtype, []).append(tensor)
    flat = [torch.cat([tensor.reshape(-1) for tensor in tensors]) for tensors in kinds.values()]
    everyone, _ = gathered(name, flat, (reduction, scale), members, sizes)
    totals = zip(kinds.items(), reduced_among_threads(everyone, ReduceOp(reduction), scale), strict=True)
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


def all_reduce(reduce_type: str, inputs: Any, scale: float = 1.0, groups: ReplicaGroups = None, pin_layout: bool = True) -> Any:
    """Reduce tensors over the replicas of a group: a new tensor for a tensor; a list or tuple is updated in place and returned.

    reduce_type: sum, mul, and, or, xor, min or max. scale: what results are multiplied by. groups: lists of ordinals that name each replica
    once; None: one group of all. pin_layout: has no effect. All replicas must call it, and all collectives in one order.
    Raises ValueError for an unknown reduction or bad groups, TypeError for a dtype that does not have the reduction.
    """
    single = isinstance(inputs, torch.Tensor)
    tensors = [inputs] if single else list(inputs)
    check_on_device("all_reduce", tensors)
    op = parse_reduce_op(reduce_type)
    op.check_dtypes(tensors)
    found = groups_of(groups)
    if not tensors:
        return inputs
    results = record(ALL_REDUCE, tensors, op.value, float(scale), groups=found)
    if single:
        return results[0]
    write(tensors, results)
    return inputs


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.all_reduce": all_reduce,
}
