"""Reductions over replicas: lowered to `jax.lax` over the replicas of a group, and folded among threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import numpy as np
import torch
from jax import lax

from xla_core.abi.collectives import ReduceOp
from xla_core.abi.operators import REPLICA_AXIS, scalar
from xla_distributed.collectives.lowering import IndexGroups
from xla_distributed.collectives.threads import TensorsByMember

_AMONG_THREADS: dict[ReduceOp, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.MUL: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.AND: torch.bitwise_and,
    ReduceOp.OR: torch.bitwise_or,
    ReduceOp.XOR: torch.bitwise_xor,
}


def reduced_among_threads(by_member: TensorsByMember, op: ReduceOp, scale: float) -> list[torch.Tensor]:
    """The reductions of the tensors that all members of a group gave, times `scale`."""
    totals = [reduce(_AMONG_THREADS[op], tensors) for tensors in zip(*by_member, strict=True)]
    return totals if scale == 1 else [(total * scale).to(total.dtype) for total in totals]


def reduced(x: jax.Array, op: ReduceOp, groups: IndexGroups) -> jax.Array:
    """The reduction of `x` over the replicas of a group."""
    if x.dtype == np.bool_:
        op = {ReduceOp.SUM: ReduceOp.MAX, ReduceOp.OR: ReduceOp.MAX, ReduceOp.MUL: ReduceOp.MIN, ReduceOp.AND: ReduceOp.MIN}.get(op, op)
    if op is ReduceOp.SUM:
        return lax.psum(x, REPLICA_AXIS, axis_index_groups=groups)  # type: ignore[no-any-return]
    if op in (ReduceOp.MAX, ReduceOp.MIN):
        return _extreme(x, op is ReduceOp.MAX, groups)
    return _folded(x, op, groups)


def _extreme(x: jax.Array, largest: bool, groups: IndexGroups) -> jax.Array:
    """The largest or smallest; NaN wins, as in torch. Floats travel as integers of the same order, since backends disagree on NaN."""
    extreme: Callable[..., jax.Array] = lax.pmax if largest else lax.pmin
    if not jax.numpy.issubdtype(x.dtype, np.floating):
        return extreme(x, REPLICA_AXIS, axis_index_groups=groups)
    int_dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    limits = np.iinfo(int_dtype)
    nan = lax.full(x.shape, limits.max if largest else limits.min, int_dtype)
    keys = lax.select(x != x, nan, _swap_negative(lax.bitcast_convert_type(x, int_dtype)))
    return lax.bitcast_convert_type(_swap_negative(extreme(keys, REPLICA_AXIS, axis_index_groups=groups)), x.dtype)


def _swap_negative(bits: jax.Array) -> jax.Array:
    """Convert the bits of floats to integers in the order of the floats, or back."""
    limits = np.iinfo(bits.dtype)
    signs = lax.shift_right_arithmetic(bits, lax.full_like(bits, limits.bits - 1))
    return lax.bitwise_xor(bits, lax.bitwise_and(signs, lax.full_like(bits, limits.max)))


def _all_bits(dtype: np.dtype) -> int:
    return -1 if jax.numpy.issubdtype(dtype, np.signedinteger) else int(np.iinfo(dtype).max)


# Reductions that not all backends have: how two values are combined, and the neutral value.
_FOLDS: dict[ReduceOp, tuple[Any, Callable[[np.dtype], int]]] = {
    ReduceOp.MUL: (lax.mul, lambda dtype: 1),
    ReduceOp.AND: (lax.bitwise_and, _all_bits),
    ReduceOp.OR: (lax.bitwise_or, lambda dtype: 0),
    ReduceOp.XOR: (lax.bitwise_xor, lambda dtype: 0),
}


def _folded(x: jax.Array, op: ReduceOp, groups: IndexGroups) -> jax.Array:
    """Gather, then fold. Groups are of any size."""
    combine, neutral_of = _FOLDS[op]
    neutral = neutral_of(x.dtype)
    gathered = lax.all_gather(x, REPLICA_AXIS)
    if groups is not None:
        is_member = jax.numpy.asarray(_membership(groups, gathered.shape[0]))[lax.axis_index(REPLICA_AXIS)]
        shape = (gathered.shape[0], *([1] * x.ndim))
        gathered = jax.numpy.where(is_member.reshape(shape), gathered, lax.full_like(gathered, neutral))
    folded: jax.Array = lax.reduce(gathered, np.asarray(neutral, x.dtype), combine, (0,))
    return folded


def _membership(groups: list[list[int]], count: int) -> np.ndarray[Any, Any]:
    """A row for each ordinal: True for the members of its group."""
    table = np.zeros((count, count), np.bool_)
    for group in groups:
        for ordinal in group:
            table[ordinal, group] = True
    return table


def scaled(x: jax.Array, scale: Any) -> jax.Array:
    """`x` times a number, in its dtype."""
    if isinstance(scale, (int, float)) and scale == 1:
        return x
    if jax.numpy.issubdtype(x.dtype, np.inexact):
        return x * scalar(scale, x.dtype)
    wide = lax.convert_element_type(x, np.float64 if x.dtype.itemsize == 8 else np.float32)
    return lax.convert_element_type(wide * scalar(scale, wide.dtype), x.dtype)
