"""Tensors without values: `empty` and its kin."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base import private_torch
from xla_core.base.private_torch import OpOverload, tree_map
from xla_core.engine.graph.aval import aval_of, dense_strides, row_major
from xla_core.engine.graph.pending_graph import Recorder, blank_value
from xla_core.engine.runtime.client import recorder_of
from xla_core.engine.tensor.encode import remember
from xla_core.engine.tensor.refusals import meta_of
from xla_core.engine.tensor.schema import Handler
from xla_core.engine.tensor.sharding import with_sharding_of
from xla_core.engine.tensor.tensor import XLATensor, wrap
from xla_core.ops.table import overload_named


def blank(func: OpOverload) -> Handler:
    """`empty` and its kin: a tensor without values, which costs nothing if it is overwritten first (as every upload does)."""
    layouts: dict[Any, torch.Tensor] = {}  # by sizes and options: asking torch takes ten times as long

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = args[0] if type(args[0]) is XLATensor else None
        device = kwargs.get("device")
        target = None if device is None else torch.device(device)
        if target is not None and target.type != "xla":
            return func(*[_like(item, target) for item in args], **kwargs)
        if source is not None and (target is None or target.index is None):
            recorder = source._storage.value.recorder
        else:
            recorder = recorder_of(target)
        if source is not None:
            return with_sharding_of(source, _made(recorder, _layout(func, args, kwargs)))
        key = (*[tuple(arg) if type(arg) is list else arg for arg in args], *kwargs.items(), torch.get_default_dtype())
        layout = layouts.get(key)
        return _made(recorder, remember(layouts, key, _layout(func, args, kwargs)) if layout is None else layout)

    return run


def _layout(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """A meta tensor like what `func` makes. Raises what torch raises for its arguments."""
    placed = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
    meta = func(*tree_map(meta_of, args), **{name: value for name, value in placed.items() if value is not None})
    return meta  # type: ignore[no-any-return]


def _made(recorder: Recorder, layout: torch.Tensor) -> XLATensor:
    """A tensor like a meta tensor; a window over a row of elements where it is not in one piece."""
    shape, strides = tuple(layout.shape), tuple(layout.stride())
    aval = aval_of(shape, layout.dtype, strides=dense_strides(layout) if layout.numel() else strides)
    if (aval.strides or row_major(shape)) == strides:
        return _unwritten(wrap(blank_value(recorder, aval)))
    span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    row = _unwritten(wrap(blank_value(recorder, aval_of((span,), layout.dtype))))
    return torch.ops.aten.as_strided.default(row, shape, strides)  # type: ignore[no-any-return]


def _unwritten(tensor: XLATensor) -> XLATensor:
    """As memory that nobody has written to: zeros, or what tells of a forgotten write if the user asked torch for that."""
    if torch.are_deterministic_algorithms_enabled() and private_torch.fills_unwritten_memory() and tensor.numel():
        dtype = tensor.dtype
        ints = not (dtype.is_floating_point or dtype.is_complex)
        tensor.fill_((True if dtype is torch.bool else torch.iinfo(dtype).max) if ints else float("nan"))
    return tensor


def _like(item: Any, device: torch.device) -> Any:
    return torch.empty_strided(item.shape, item.stride(), dtype=item.dtype, device=device) if type(item) is XLATensor else item


_NAMES = ("empty.memory_format", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted")
HANDLERS: dict[str, Handler] = {name: blank(overload_named(f"aten::{name}")) for name in _NAMES}
