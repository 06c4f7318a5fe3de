"""Compute recorded programs with torch on the CPU, operation by operation: nothing compiles, and thousands of programs run in a minute.

What such a run shows is how operations are recorded, not how they are lowered.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import jax
import numpy as np
import torch

from xla_core.base import config
from xla_core.engine.compile import build
from xla_core.engine.compile.emit import Constants, evaluate, leaves_of
from xla_core.engine.graph.entries import ScalarKind
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.signature import Signature, fill
from xla_core.engine.placement.layout import Layout
from xla_core.engine.placement.placement import Placement
from xla_core.ops.shape.view_steps import ViewStep
from xla_core.ops.table import Context, overload_named


@contextmanager
def graphs_by_torch() -> Iterator[None]:
    """Programs that are built inside are computed by torch."""
    with config.override(config.REFERENCE, True), mock.patch.object(build, "reference", _by_torch):
        yield


def _by_torch(graph: Graph, constants: Constants, placement: Placement, layout: Layout, checked: bool) -> Callable[..., list[Any]]:
    def run(*arguments: Any) -> list[Any]:
        leaves = map(_tensor, leaves_of(graph, constants, arguments, _numbers))
        with torch.no_grad():
            values = evaluate(graph, leaves, placement.context, emitter=_emit)
        return list(jax.device_put([*[_array(values[slot]) for slot in graph.outs], np.uint8(0)], placement.device))

    return run


def _numbers(packed: Sequence[Any], numbers: Mapping[ScalarKind, int]) -> dict[ScalarKind, list[Any]]:
    """The numbers behind the buffers: an array of one kind, or 64 bits of each."""
    bits = np.concatenate([np.asarray(array).reshape(-1).view(np.uint64) for array in packed]) if packed else np.empty(0, np.uint64)
    rows, start = {}, 0
    for kind, count in numbers.items():
        row = bits[start : start + count]
        start += count
        rows[kind] = {ScalarKind.FLOAT: row.view(np.float64), ScalarKind.INT: row.view(np.int64), ScalarKind.SEED: row}[kind].tolist()
    return rows


def _tensor(leaf: Any) -> Any:
    return torch.from_numpy(np.array(leaf)) if isinstance(leaf, jax.Array) else leaf


def _array(tensor: torch.Tensor) -> Any:
    return np.array(tensor.numpy())


def _emit(signature: Signature, operands: list[Any], context: Context, checks: Any = None) -> list[Any]:
    if signature.name.startswith("xla.read"):
        results: Any = _read(signature, operands, context)
    elif signature.name.startswith("xla.write"):
        results = _written(signature, operands, context)
    elif signature.target:
        remaining = iter(operands)
        args = [fill(arg, remaining) for arg in signature.args]
        results = overload_named(signature.target)(*args, **{name: fill(arg, remaining) for name, arg in signature.kwargs.items()})
    else:
        results = _lowered(signature, operands, context)
    flat = list(results) if isinstance(results, (list, tuple)) else [results]
    return [
        None if out is None else torch.empty(out.shape, dtype=out.dtype).copy_(result)
        for result, out in zip(flat, signature.outs, strict=True)
    ]


def _lowered(signature: Signature, operands: list[Any], context: Context) -> list[Any]:
    arrays = [jax.numpy.asarray(_array(operand)) if isinstance(operand, torch.Tensor) else operand for operand in operands]
    return [_tensor(result) for result in signature.call(arrays, context)]


def _view(base: torch.Tensor, signature: Signature, offsets: Sequence[int], of_copies: bool = False) -> torch.Tensor:
    """The view of a base that an operation reads or writes; raises RuntimeError where strides do not express it, unless `of_copies`."""
    steps: tuple[ViewStep, ...] = inspect.getclosurevars(signature.lower).nonlocals["steps"]
    remaining = iter(offsets)
    for step in steps:
        args = step.args if step.offset is None else _with_offset(step, next(remaining))
        base = overload_named(f"aten::{step.name}")(base.contiguous() if of_copies else base, *args)
    return base


def _with_offset(step: ViewStep, offset: int) -> tuple[Any, ...]:
    if step.name == "select.int":
        return (*step.args, offset)
    dim, gap = step.args
    return (dim, offset, offset + step.shape[dim] * gap, gap)


def _read(signature: Signature, operands: list[Any], context: Context) -> Any:
    try:
        return _view(operands[0], signature, operands[1:], of_copies=True)
    except RuntimeError:  # other bits of no elements, whose strides are 0
        return _lowered(signature, operands, context)


def _written(signature: Signature, operands: list[Any], context: Context) -> Any:
    base, part, *offsets = operands
    written = base.clone()
    try:
        _view(written, signature, offsets).copy_(part)
    except RuntimeError:  # only the lowering can: the view is of a copy, or shows an element more than once
        return _lowered(signature, operands, context)
    return written
