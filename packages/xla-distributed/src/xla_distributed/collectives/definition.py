"""Define the operations behind the collectives, `torch.ops.xla_distributed`: schemas, shapes of results, rows of the op table.

Each takes and gives the token that keeps collectives in order (`lowering.py`). Groups are two lists: members in line, and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from xla_core.abi.operators import OpSpec, register_op
from xla_distributed.job import flight_recorder

NAMESPACE = "xla_distributed"
GROUPS = "int[] members, int[] sizes"
# Held for good: torch takes the operators back when their library is collected.
_LIBRARY: Any = torch.library.Library(NAMESPACE, "DEF")
Tensors = Sequence[torch.Tensor]
Results = tuple[list[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """A collective as replicas issue it.

    operation: records it in a graph, called as `operation(inputs, token, *rest)`, and gives results and the next token.
    lower: what it is in a program, called as `lower(context, inputs, token, *rest)`, with arrays.
    among_threads: its results where the replicas are threads of one process, called as `among_threads(name, inputs, *rest)`.
    """

    name: str
    operation: Any
    lower: Callable[..., Any]
    among_threads: Callable[..., Any]


def define(
    name: str,
    arguments: str,
    shapes: Callable[..., Any],
    lower: Callable[..., Any],
    among_threads: Callable[..., Any],
    scalars: Sequence[str] = (),
    shown_as: str = "",
) -> CollectiveOp:
    """Define the operation `name`, which flight recorders record.

    arguments: of the schema, and its results; shapes: of the results, as a meta kernel; lower: called with a `Context`, the arrays, the
    token and the rest; scalars: arguments that are values only, so that another one is no other program;
    shown_as: its name in graphs as text, where it is not its own.
    """
    _LIBRARY.define(f"{name}{arguments}")
    _LIBRARY.impl(name, shapes, "Meta")
    # has_side_effects: what has run is not computed again for a later read, since other replicas do not read.
    register_op(OpSpec(f"{NAMESPACE}::{name}", lower, frozenset(scalars), has_side_effects=True, shown_as=shown_as))
    flight_recorder.record_operation(f"{NAMESPACE}.{name}", name)
    return CollectiveOp(name, getattr(getattr(torch.ops, NAMESPACE), name).default, lower, among_threads)


def shapes_of_inputs(inputs: Tensors, token: torch.Tensor, *_: Any) -> Results:
    """Results of the shapes of the inputs."""
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs], torch.empty_like(token)


def shape_of_input(value: torch.Tensor, token: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A result of the shape of the input."""
    return torch.empty_like(value, memory_format=torch.contiguous_format), torch.empty_like(token)


def resized(x: torch.Tensor, dim: int, times: int, parts: int) -> torch.Tensor:
    """An empty tensor as `x`, of which one dimension has `times / parts` as many elements."""
    shape = list(x.shape)
    shape[dim] = shape[dim] * times // parts
    return x.new_empty(shape)
