"""Reductions over replicas: one enum, parsed where users give a name."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import torch


class ReduceOp(enum.Enum):
    """A reduction over replicas. value: the name that `xm.all_reduce` takes."""

    SUM = "sum"
    MUL = "mul"
    AND = "and"
    OR = "or"
    XOR = "xor"
    MIN = "min"
    MAX = "max"

    def check_dtypes(self, tensors: Iterable[torch.Tensor]) -> None:
        """Raise TypeError for tensors of a dtype that does not have this reduction."""
        if self in _OF_ALL_DTYPES:
            return
        for tensor in tensors:
            if self in (ReduceOp.AND, ReduceOp.OR, ReduceOp.XOR) and (tensor.is_floating_point() or tensor.is_complex()):
                raise TypeError(f"reduce_type {self.value!r} is for booleans and integers, got {tensor.dtype}")
            if self in (ReduceOp.MIN, ReduceOp.MAX) and tensor.is_complex():
                raise TypeError(f"reduce_type {self.value!r} needs an order, which {tensor.dtype} has not")


_OF_ALL_DTYPES = (ReduceOp.SUM, ReduceOp.MUL)
# By name, and by themselves.
_KNOWN: dict[object, ReduceOp] = {key: op for op in ReduceOp for key in (op, op.value)}


def parse_reduce_op(given: object) -> ReduceOp:
    """The reduction of a name that `xm` takes. Raises ValueError for an unknown one."""
    try:
        return _KNOWN[given]
    except (KeyError, TypeError):
        raise ValueError(f"reduce_type is {given!r}, must be one of {', '.join(op.value for op in ReduceOp)}") from None
