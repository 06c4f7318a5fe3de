"""Reductions as users of `torch.distributed` give them."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.abi.collectives import ReduceOp

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


def parse_torch_reduce_op(reduce_op: Any, size: int) -> tuple[ReduceOp, float]:
    """The reduction and the scale of its result for a `torch.distributed.ReduceOp`, or its name in any case, over `size` replicas.

    A sum of scaled inputs (PREMUL_SUM) becomes a sum whose result is scaled. Raises RuntimeError for a name that torch does not know.
    """
    operation = getattr(torch.distributed.ReduceOp, reduce_op.upper(), None) if isinstance(reduce_op, str) else reduce_op
    if operation is None:
        raise RuntimeError(f"reduce_op is {reduce_op!r}, must be one of sum, avg, product, min, max, band, bor, bxor")
    for name, (reduction, mean) in _OF_TORCH.items():
        if operation == getattr(torch.distributed.ReduceOp, name):
            return reduction, 1.0 / size if mean else 1.0
    if operation == torch.distributed.ReduceOp.PREMUL_SUM:
        _, factor = operation.__getstate__()
        return ReduceOp.SUM, float(factor)
    raise NotImplementedError(f"{operation} is not available on xla devices; use SUM, AVG, PRODUCT, BAND, BOR, BXOR, MIN or MAX")
