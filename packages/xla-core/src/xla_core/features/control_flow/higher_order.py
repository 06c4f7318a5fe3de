"""Torch's own higher-order operators on xla tensors: `torch.cond`, `while_loop`, `scan` and `map`. Each is imported at its first call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.base import private_torch
from xla_core.base.private_torch import tree_leaves
from xla_core.engine.tensor.plain import holder_of
from xla_core.engine.tensor.tensor import XLATensor


def _cond(*args: Any, **kwargs: Any) -> Any:
    from xla_core.features.control_flow.conditional import cond

    return cond(*args, **kwargs)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    from xla_core.features.control_flow.loops import while_loop

    tensors = [_as_tensor(item, [*carried, *additional]) for item in carried]
    return while_loop(lambda *items: cond_fn(*items, *additional), lambda *items: body_fn(*items, *additional), tensors)


def _as_tensor(item: Any, among: Sequence[Any]) -> Any:
    """A number as a tensor on the others' device, since a loop carries tensors."""
    if isinstance(item, torch.Tensor):
        return item
    return torch.tensor(item, device=next(tensor.device for tensor in among if isinstance(tensor, torch.Tensor)))


def _scan(combine_fn: Callable[..., Any], init: Sequence[Any], xs: Sequence[Any], additional: Sequence[Any] = ()) -> list[Any]:
    from xla_core.features.control_flow.scan import scan

    carried = len(init)

    def turn(carry: Any, x: Any) -> tuple[list[Any], list[Any]]:
        results = list(combine_fn(*carry, *x, *additional))
        return results[:carried], results[carried:]

    carry, outputs = scan(turn, list(init), list(xs))
    return [*carry, *outputs]


def _map(fn: Callable[..., Any], xs: Sequence[Any], additional: Sequence[Any], mutated_arg_indices: str = "") -> list[Any]:
    """mutated_arg_indices: passed by torch 2.14 and later, and empty, since torch refuses functions that write to their arguments."""

    from xla_core.features.control_flow.scan import scan

    def turn(carry: Any, x: Any) -> tuple[None, list[Any]]:
        return None, list(fn(*x, *additional))

    outputs: list[Any] = scan(turn, None, list(xs))[1]
    return outputs


def _real(*arguments: Any) -> bool:
    """Whether all tensors among the arguments are xla tensors with values, and not stand-ins for torch's tracing."""
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    return all(holder_of(tensor) is not None for tensor in tensors)


def register() -> None:
    """Let each of torch's higher-order operators run as one operation of the graph."""
    functions: dict[str, Callable[..., Any]] = {"cond": _cond, "while_loop": _while_loop, "scan": _scan, "map_impl": _map}
    for name, function in functions.items():
        private_torch.serve_higher_order(name, XLATensor, function, _real)
