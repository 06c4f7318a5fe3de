"""The operations behind the collectives, `torch.ops.xla_distributed`: schemas, shapes of results, rows of the op table.

Each takes and gives the token that keeps collectives in order (`lowering.py`). Groups are two lists: members in line, and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.abi import OpSpec, register_op
from xla_distributed import lowering
from xla_distributed.ledger import NAMESPACE

_LIBRARY: Any = torch.library.Library(NAMESPACE, "DEF")
Tensors = Sequence[torch.Tensor]
Results = tuple[list[torch.Tensor], torch.Tensor]


def _define(schema: str, shapes: Callable[..., Any], lower: Callable[..., Any]) -> Any:
    name = schema.partition("(")[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, shapes, "Meta")
    scalars = frozenset({"scale"} if "float scale" in schema else ())
    register_op(OpSpec(f"{NAMESPACE}::{name}", lower, scalars, once=True))
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def _same(inputs: Tensors, token: torch.Tensor, *_: Any) -> Results:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs], torch.empty_like(token)


def _scaled_dim(x: torch.Tensor, dim: int, times: int, parts: int) -> torch.Tensor:
    shape = list(x.shape)
    shape[dim] = shape[dim] * times // parts
    return x.new_empty(shape)


def _gathered(inputs: Tensors, token: torch.Tensor, dim: int, count: int, *_: Any) -> Results:
    return [_scaled_dim(x, dim, count, 1) for x in inputs], torch.empty_like(token)


def _scattered(inputs: Tensors, token: torch.Tensor, reduction: str, scale: float, dim: int, count: int, *_: Any) -> Results:
    return [_scaled_dim(x, dim, 1, count) for x in inputs], torch.empty_like(token)


def _exchanged(value: torch.Tensor, token: torch.Tensor, split_dim: int, concat_dim: int, count: int, *_: Any) -> Any:
    return _scaled_dim(_scaled_dim(value, split_dim, 1, count), concat_dim, count, 1), torch.empty_like(token)


def _like(value: torch.Tensor, token: torch.Tensor, *_: Any) -> Any:
    return torch.empty_like(value, memory_format=torch.contiguous_format), torch.empty_like(token)


_GROUPS = "int[] members, int[] sizes"
all_reduce = _define(
    f"all_reduce(Tensor[] inputs, Tensor token, str reduction, float scale, {_GROUPS}) -> (Tensor[], Tensor)", _same, lowering.all_reduce
)
all_gather = _define(
    f"all_gather(Tensor[] inputs, Tensor token, int dim, int count, {_GROUPS}) -> (Tensor[], Tensor)", _gathered, lowering.all_gather
)
reduce_scatter = _define(
    f"reduce_scatter(Tensor[] inputs, Tensor token, str reduction, float scale, int dim, int count, {_GROUPS}) -> (Tensor[], Tensor)",
    _scattered,
    lowering.reduce_scatter,
)
all_to_all = _define(
    f"all_to_all(Tensor value, Tensor token, int split_dim, int concat_dim, int count, {_GROUPS}) -> (Tensor, Tensor)",
    _exchanged,
    lowering.all_to_all,
)
collective_permute = _define(
    "collective_permute(Tensor value, Tensor token, int[] pairs) -> (Tensor, Tensor)", _like, lowering.collective_permute
)
broadcast = _define(f"broadcast(Tensor[] inputs, Tensor token, int place, {_GROUPS}) -> (Tensor[], Tensor)", _same, lowering.broadcast)
