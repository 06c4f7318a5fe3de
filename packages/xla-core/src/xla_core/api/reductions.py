"""Reductions over replicas: one enum, parsed where users give a name or an operation of `torch.distributed`."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

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

# Name in `torch.distributed.ReduceOp` → the reduction, and whether its result is divided by the number of replicas.
_OF_TORCH: dict[str, tuple[ReduceOp, bool]] = {
    "SUM": (ReduceOp.SUM, False),
    "AVG": (ReduceOp.SUM, True),
    "PRODUCT": (ReduceOp.MUL, False),
    "BAND": (ReduceOp.AND, False),
    "BOR": (ReduceOp.OR, False),
    "BXOR": (ReduceOp.XOR, False),
    "MIN": (ReduceOp.MIN, False),
    "MAX": (ReduceOp.MAX, False),
}


def parse_reduce_op(given: object) -> ReduceOp:
    """The reduction of a name that `xm` takes. Raises ValueError for an unknown one."""
    try:
        return _KNOWN[given]
    except (KeyError, TypeError):
        raise ValueError(f"reduce_type is {given!r}, must be one of {', '.join(op.value for op in ReduceOp)}") from None


def parse_torch_reduce_op(given: Any, size: int) -> tuple[ReduceOp, float]:
    """The reduction and the scale of its result for a `torch.distributed.ReduceOp`, or its name in any case, over `size` replicas.

    A sum of scaled inputs (PREMUL_SUM) becomes a sum whose result is scaled. Raises RuntimeError for a name that torch does not know.
    """
    operation = getattr(torch.distributed.ReduceOp, given.upper(), None) if isinstance(given, str) else given
    if operation is None:
        raise RuntimeError(f"reduce_op is {given!r}, must be one of sum, avg, product, min, max, band, bor, bxor")
    for name, (reduction, mean) in _OF_TORCH.items():
        if operation == getattr(torch.distributed.ReduceOp, name):
            return reduction, 1.0 / size if mean else 1.0
    if operation == torch.distributed.ReduceOp.PREMUL_SUM:
        _, factor = operation.__getstate__()
        return ReduceOp.SUM, float(factor)
    raise NotImplementedError(f"{operation} is not available on xla devices; use SUM, AVG, PRODUCT, BAND, BOR, BXOR, MIN or MAX")
