"""The operator namespace `xla`, and its operations without a counterpart in torch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from jax import lax

from xla_core.base.budgets import budget
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tensor.values import value_of
from xla_core.engine.tensor.writes import write
from xla_core.ops.table import Context, OpSpec, register_op

_LIBRARY: Any = torch.library.Library  # has no types
_optimization_barrier: Any = lax.optimization_barrier


@cache
def xla_library() -> Any:
    """The namespace in definition mode, made once; add operations to it through this object."""
    library = _LIBRARY("xla", "DEF")
    library.define("optimization_barrier(Tensor[] tensors) -> Tensor[]")
    library.impl("optimization_barrier", _separate, "CompositeExplicitAutograd")
    register_op(OpSpec("xla::optimization_barrier", _barrier, notes="keeps the compiler from moving or merging computation"))
    return library


def _separate(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """On other devices: copies, since there is no compiler to hold back."""
    return [tensor.clone() for tensor in tensors]


def _barrier(context: Context, tensors: list[Any]) -> list[Any]:
    """optimization_barrier(Tensor[] tensors) -> Tensor[]"""
    return list(_optimization_barrier(tuple(tensors)))


@budget()
def optimization_barrier_(tensors: list[torch.Tensor]) -> None:
    """Put a barrier on tensors, in place: values stay, but the compiler may not move or merge computation across this point."""
    xla_library()
    targets = [tensor for tensor in tensors if tensor_behind(tensor) is not None]
    if not targets:
        return
    with torch.no_grad():
        results = torch.ops.xla.optimization_barrier([target.detach() for target in targets])
    for target, result in zip(targets, results, strict=True):
        write(target, value_of(result))


XLA_LIB = xla_library()
